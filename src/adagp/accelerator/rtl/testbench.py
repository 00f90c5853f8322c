"""Runs programs on the RTL, cycle by cycle, in Amaranth's simulator."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Shape, Value
from amaranth.sim import Simulator

from adagp.accelerator.rtl.descriptor import Descriptor
from adagp.accelerator.rtl.dram import Timing, Words
from adagp.accelerator.rtl.geometry import ADDRESS_BITS, CoreGeometry
from adagp.accelerator.rtl.loader import WORDS_BITS
from adagp.accelerator.rtl.top import Accelerator
from adagp.accelerator.rtl.watchdog import Standstill, deadlock, patience_cycles

_ADDRESSES, _COUNTS = (1 << ADDRESS_BITS) - 1, (1 << WORDS_BITS) - 1


@dataclass(frozen=True)
class Trace:
    """What a core did.

    Attributes:
        cycles: Cycles until its last descriptor was taken.
        read_words: Words read from DRAM.
        written_words: Words written to DRAM.
    """

    cycles: int
    read_words: int
    written_words: int


class Bench:
    """A design in Amaranth's simulator, with DRAM around it."""

    name = "Amaranth's simulator"
    cycles_per_second = 250
    """Its speed with a dozen PEs, roughly."""

    def __init__(
        self, cores: Mapping[str, CoreGeometry], timing: Timing | None = None, stalls: float = 0.0, seed: int = 0
    ) -> None:
        """Every `run` starts from reset.

        Args:
            cores: The design's cores.
            timing: DRAM's speed.
            stalls: Share of the cycles in which each channel makes the core wait at random.
            seed: Seed of these.
        """
        self.cores, self.timing, self.stalls, self.seed = dict(cores), timing or Timing(), stalls, seed
        self._channels: dict[str, _Channels] = {}
        self._simulator: Simulator | None = None
        self.vcd: Path | None = None
        """Where `run` writes waveforms, if anywhere."""

    def run(
        self,
        programs: Mapping[str, Sequence[Descriptor]],
        dram: Words,
        tell: Callable[[int], None] | None = None,
    ) -> dict[str, Trace]:
        """Run a program on each core until its last descriptor, a barrier, is taken; changes `dram`.

        Raises:
            DeadlockError: If the design stands still.
        """
        self._channels = {
            unit: _Channels([each.encode() for each in program], dram, self.timing, self.stalls, self.seed + place)
            for place, (unit, program) in enumerate(programs.items())
        }
        if self._simulator is None:
            design = Accelerator(self.cores)
            self._simulator = self._made(design)
            self._simulator.add_clock(1e-6)
            for unit in self.cores:
                self._simulator.add_process(self._process(unit, getattr(design, unit)))
        else:
            self._simulator.reset()
        with self._simulator.write_vcd(str(self.vcd)) if self.vcd else nullcontext():
            self._clock(self._simulator, programs, tell)
        return {
            unit: Trace(state.last + 1, state.read_words, state.written_words) for unit, state in self._channels.items()
        }

    def _made(self, design: Accelerator) -> Simulator:
        return Simulator(design)

    def _clock(
        self,
        simulator: Simulator,
        programs: Mapping[str, Sequence[Descriptor]],
        tell: Callable[[int], None] | None,
    ) -> None:
        told, patience = 0, patience_cycles(programs, self.cores, self.timing)
        while not all(state.done for state in self._channels.values()):
            simulator.advance()
            now = max(state.cycle for state in self._channels.values())
            moved = max(state.moved for state in self._channels.values())
            if now - moved > patience:
                standing = {unit: state.standstill for unit, state in self._channels.items() if not state.done}
                raise deadlock(self.cores, programs, standing, moved)
            if tell is not None and now >= told + 100:
                told = now
                tell(now)

    def _process(self, unit: str, ports: Any) -> Callable[[Any], Any]:
        async def process(context: Any) -> None:
            if unit in self._channels:
                await _serve(context, ports, self._channels[unit])

        return process


class _Channels:
    """DRAM and the descriptors as one core sees them."""

    def __init__(self, descriptors: list[int], dram: Words, timing: Timing, stalls: float, seed: int) -> None:
        self.descriptors, self.dram, self.timing = descriptors, dram, timing
        self.stalls, self._random = stalls, np.random.default_rng(seed)
        self.taken = self.cycle = self.last = self.moved = self.read_words = self.written_words = 0
        self.waiting: dict[str, bool] = {}
        self.describes = False  # whether a descriptor is offered, which stays until it is taken
        self.answers: deque[tuple[int, list[int], int]] = deque()  # earliest start, words, cycles
        self.answers_free = self.writes_free = 0
        self.offered = -1

    @property
    def done(self) -> bool:
        return self.taken == len(self.descriptors)

    @property
    def standstill(self) -> Standstill:
        """What it took so far, and the channels that wait."""
        return Standstill(self.taken, tuple(channel for channel, waits in self.waiting.items() if waits))

    def willing(self) -> bool:
        return not self.stalls or self._random.random() >= self.stalls

    def answer(self) -> list[int] | None:
        """The beat that is offered in this cycle."""
        if not self.answers:
            return None
        if self.offered < 0:
            start, _, cycles = self.answers[0]
            self.offered = max(start, self.answers_free) + cycles - 1
        return self.answers[0][1] if self.cycle >= self.offered else None

    def ask(self, address: int, words: int) -> None:
        found = self.dram[address : address + words].tolist()
        assert len(found) == words, f"read of {words} words at {address}"
        self.read_words += words
        late = int(self._random.integers(0, 9)) if self.stalls else 0
        self.answers.append((self.cycle + self.timing.latency_cycles + late, found, self.timing.beat_cycles(words)))

    def answered(self) -> None:
        self.answers.popleft()
        self.answers_free, self.offered = self.cycle + 1, -1

    def write(self, address: int, words: Sequence[int]) -> None:
        assert address + len(words) <= len(self.dram), f"write of {len(words)} words at {address}"
        self.dram[address : address + len(words)] = words
        self.written_words += len(words)
        self.writes_free = self.cycle + self.timing.beat_cycles(len(words))


async def _serve(context: Any, ports: Any, state: _Channels) -> None:
    """Play DRAM and the source of descriptors, cycle by cycle. Payloads are whole numbers, which is quickest."""
    beat, request, write = (Value.cast(channel.payload) for channel in (ports.answers, ports.requests, ports.writes))
    width = Shape.cast(ports.answers.payload.shape().elem_shape).width
    watched = context.tick().sample(
        ports.descriptors.ready, ports.requests.valid, request, ports.answers.ready, ports.writes.valid, write
    )
    driven: dict[Any, int] = {}

    def drive(signal: Any, value: int) -> None:
        if driven.get(id(signal)) != value:
            driven[id(signal)] = value
            context.set(signal, value)

    while not state.done:
        answer = state.answer()
        state.describes = state.describes or state.willing()
        asks, takes = state.willing(), state.cycle >= state.writes_free and state.willing()
        drive(ports.descriptors.valid, int(state.describes))
        drive(ports.descriptors.payload, state.descriptors[state.taken])
        drive(ports.requests.ready, int(asks))
        drive(ports.writes.ready, int(takes))
        drive(ports.answers.valid, int(answer is not None))
        if answer is not None:
            drive(beat, _packed(answer, width))
        _, _, ready, asked, wanted, answered, written, given = await watched
        if answered and answer is not None:
            state.answered()
        if asked and asks:
            state.ask(wanted & _ADDRESSES, wanted >> ADDRESS_BITS)
        if written and takes:
            count = given >> ADDRESS_BITS & _COUNTS
            state.write(given & _ADDRESSES, _unpacked(given >> ADDRESS_BITS + WORDS_BITS, count, width))
        taken = bool(ready and state.describes)
        if taken:
            state.taken += 1
            state.last, state.describes = state.cycle, False
        offers, takes_answer = answer is not None, bool(answered)
        if taken or (asked and asks) or (written and takes) or (offers and takes_answer):
            state.moved = state.cycle
        state.waiting = {
            "requests": bool(asked and not asks),
            "answers": offers and not takes_answer,
            "writes": bool(written and not takes),
        }
        state.cycle += 1
    context.set(ports.descriptors.valid, 0)


def _packed(words: Sequence[int], width: int) -> int:
    """Signed words as one number, the first in the lowest bits."""
    return sum((word & (1 << width) - 1) << place * width for place, word in enumerate(words))


def _unpacked(number: int, count: int, width: int) -> list[int]:
    """The reverse of `_packed`."""
    sign = 1 << width - 1
    return [((number >> place * width & (1 << width) - 1) ^ sign) - sign for place in range(count)]
