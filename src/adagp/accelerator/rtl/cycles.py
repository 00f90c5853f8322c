"""The cycles of programs by formula: products, moves at a finite bandwidth and latency, and what waits for what.

Every descriptor has a closed form. They are put together in the order in which the dispatcher takes them, so the work
grows with the descriptors and not with the cycles. The RTL takes exactly these cycles if DRAM takes every request at
once, which is what `dram.Timing` describes.
"""

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from math import prod

from adagp.accelerator.rtl.descriptor import Barrier, Drain, Load, Product, Unit
from adagp.accelerator.rtl.dispatcher import QUEUE
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.program import Loop, Program
from adagp.accelerator.shapes import Gemm
from adagp.accelerator.systolic import ws_cycles

PRODUCT_OVERHEAD_CYCLES = 3
"""Cycles of a product besides the accelerator model's: one to accept it, two until its last sum is written."""
_WRITE_DELAY = 3
"""Cycles from the acceptance of a drain to its first beat."""
_UNITS = {bits: tuple(unit for unit in Unit if bits >> unit & 1) for bits in range(1 << len(Unit))}
"""The units of a descriptor's `waits` and `signals`."""


@dataclass
class CoreCycles:
    """What a core does in a program.

    Attributes:
        cycles: Cycles until the last descriptor is taken.
        busy: Cycles in which each unit has work.
        array_cycles: Cycles of the products by the accelerator model, without overhead.
        read_words: Words read from DRAM.
        written_words: Words written to DRAM.
        barriers: Cycle in which each barrier is taken, by its place in the program.
    """

    cycles: int = 0
    busy: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 0))
    array_cycles: int = 0
    read_words: int = 0
    written_words: int = 0
    barriers: dict[int, int] = field(default_factory=dict)


def program_cycles(
    programs: Mapping[str, Program], cores: Mapping[str, CoreGeometry], timing: Timing
) -> dict[str, CoreCycles]:
    """The cycles of each core's program, when all start at once."""
    running = {unit: _Core(program, cores[unit], timing).run() for unit, program in programs.items()}
    waiting = {unit: next(core, None) for unit, core in running.items()}
    while any(isinstance(at, int) for at in waiting.values()):
        together = max(at for at in waiting.values() if isinstance(at, int))
        waiting = {unit: running[unit].send(together) if isinstance(at, int) else at for unit, at in waiting.items()}
    return {unit: found for unit, found in waiting.items() if isinstance(found, CoreCycles)}


class _Core:
    """The state of one core, descriptor after descriptor."""

    def __init__(self, program: Program, geometry: CoreGeometry, timing: Timing) -> None:
        self._program, self._geometry, self._timing = program, geometry, timing
        self._found = CoreCycles()
        self._free = dict.fromkeys(Unit, 0)  # first cycle in which a unit can accept
        self._accepted: dict[Unit, deque[int]] = {unit: deque(maxlen=QUEUE) for unit in Unit}
        self._tokens: dict[tuple[Unit, Unit], deque[int]] = {(a, b): deque() for a in Unit for b in Unit}
        self._writes_free = 0

    def run(self) -> Generator["int | CoreCycles", int, None]:
        """Yields the cycle in which a joining barrier could be taken, is sent when it is; yields the result last."""
        now = -1
        for index, descriptor in enumerate(self._program.descriptors):
            now += 1
            if isinstance(descriptor, Barrier):
                now = max(now, *self._free.values())
                if descriptor.join:
                    now = yield now
                self._found.barriers[index] = now
                continue
            unit = descriptor.unit
            queue = self._accepted[unit]
            if len(queue) == QUEUE:
                now = max(now, queue[0] + 1)
            start = max(now + 1, self._free[unit])
            if isinstance(descriptor, Load | Product | Drain):
                for other in _UNITS[descriptor.waits]:
                    start = max(start, self._tokens[other, unit].popleft() + 1)
                end = self._end(descriptor, self._program.loops[index], start)
                for other in _UNITS[descriptor.signals]:
                    self._tokens[unit, other].append(end)
                self._found.busy[unit] += end - start + 1
            else:
                end = start
            queue.append(start)
            self._free[unit] = end + 1
        self._found.cycles = now + 1
        yield self._found

    def _end(self, descriptor: Load | Product | Drain, loops: tuple[Loop, ...], start: int) -> int:
        """The last cycle of a descriptor that is accepted in cycle `start`."""
        match descriptor:
            case Load():
                full, tails, zeros = _beats(loops)
                self._found.read_words += full * descriptor.words + tails * descriptor.tail
                serial = descriptor.words - 1 if descriptor.column else 0
                beats = ((full, descriptor.words), (tails, descriptor.tail), (zeros, 0))
                return (
                    start
                    + self._timing.latency_cycles
                    + sum(number * (self._timing.beat_cycles(words) + serial) for number, words in beats)
                )
            case Product():
                rows, columns = self._geometry.rows, self._geometry.columns
                gemm = Gemm(descriptor.count, descriptor.n_folds * columns, descriptor.k_folds * rows)
                cycles = ws_cycles(gemm, rows, columns)
                self._found.array_cycles += cycles
                return start + cycles + PRODUCT_OVERHEAD_CYCLES - 1
            case Drain():
                outer = loops[-1].count
                tails = descriptor.count // outer
                full = descriptor.count - tails
                self._found.written_words += full * descriptor.words + tails * descriptor.tail
                whole, last = (self._timing.beat_cycles(words) for words in (descriptor.words, descriptor.tail))
                first = max(start + _WRITE_DELAY, self._writes_free)
                end = first + full * whole + (tails - 1) * last
                self._writes_free = end + last
                return end


def _beats(loops: tuple[Loop, ...]) -> tuple[int, int, int]:
    """Beats of a load: full ones, those of the last iteration of level 0, and those that are zeros."""
    inner, *outer = loops
    around = prod(loop.inside for loop in outer)
    tails = around if inner.inside and inner.low + inner.inside == inner.count else 0
    valid = around * inner.inside
    return valid - tails, tails, prod(loop.count for loop in loops) - valid
