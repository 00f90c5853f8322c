"""Ends a simulation in which nothing moves any more, and tells what waits."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adagp.accelerator.rtl.cycles import PRODUCT_OVERHEAD_CYCLES
from adagp.accelerator.rtl.descriptor import Barrier, Descriptor, Drain, Load, Product, Unit
from adagp.accelerator.rtl.dispatcher import QUEUE
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.shapes import Gemm
from adagp.accelerator.systolic import ws_cycles
from adagp.errors import AdagpError

_SLACK_CYCLES = 1_000
"""For a beat on a narrow channel, for random stalls, and for what starts and ends."""


class DeadlockError(AdagpError, RuntimeError):
    """The RTL stands still; the message names the cycle, what waits, and the remedy."""


@dataclass(frozen=True)
class Standstill:
    """A core that has not done its program.

    Attributes:
        taken: Descriptors that it took.
        channels: Channels on which a word is offered that the other side does not take.
    """

    taken: int
    channels: tuple[str, ...]


def patience_cycles(
    programs: Mapping[str, Sequence[Descriptor]], cores: Mapping[str, CoreGeometry], timing: Timing
) -> int:
    """After so many cycles without a word on any channel there will never be one.

    Loads and drains move a beat every few cycles. Only products move none, and an array has at most those in its queue
    after the one at work.
    """
    longest = 0
    for unit, program in programs.items():
        core = cores[unit]
        sizes = {(each.count, each.n_folds, each.k_folds) for each in program if isinstance(each, Product)}
        cycles = (
            ws_cycles(Gemm(count, n_folds * core.columns, k_folds * core.rows), core.rows, core.columns)
            for count, n_folds, k_folds in sizes
        )
        longest += (QUEUE + 1) * (max(cycles, default=0) + PRODUCT_OVERHEAD_CYCLES)
    return longest + timing.latency_cycles + _SLACK_CYCLES


def deadlock(
    cores: Mapping[str, CoreGeometry],
    programs: Mapping[str, Sequence[Descriptor]],
    standing: Mapping[str, Standstill],
    cycle: int,
) -> DeadlockError:
    """The error for a design in which nothing has moved since `cycle`."""
    design = ", ".join(f"{unit} {core.rows}x{core.columns}" for unit, core in cores.items())
    waits = "; ".join(f"{unit}: {_wait(programs[unit], each)}" for unit, each in standing.items())
    return DeadlockError(
        f"deadlock in the design of {design} PEs: nothing has moved since cycle {cycle:,}; {waits}; correct the "
        "descriptors' tokens, which `Program.work` sets, or look at that cycle in waveforms: adagp hardware run --vcd"
    )


def _wait(program: Sequence[Descriptor], standing: Standstill) -> str:
    """What a core waits for: tokens that nobody gives, or otherwise whoever does not take what is offered."""
    found = [
        f"descriptor {index} in {unit.name} waits for a token of {giver.name}"
        for unit, (index, giver) in _without_token(program[: standing.taken]).items()
    ]
    found += [f"the channel '{channel}' waits to be taken from" for channel in standing.channels]
    if standing.taken < len(program):
        head = program[standing.taken]
        why = "until all units rest" if isinstance(head, Barrier) else f"for room in the queue of {head.unit.name}"
        found.append(f"descriptor {standing.taken}, {head.op.name}, waits {why}")
    return ", ".join(found)


def _without_token(taken: Sequence[Descriptor]) -> dict[Unit, tuple[int, Unit]]:
    """The units that wait for ever if each does its descriptors in order: at which one, for a token of whom."""
    queues: dict[Unit, deque[tuple[int, Load | Product | Drain]]] = {unit: deque() for unit in Unit}
    for index, each in enumerate(taken):
        if isinstance(each, Load | Product | Drain):
            queues[each.unit].append((index, each))
    tokens: Counter[tuple[Unit, Unit]] = Counter()
    missing: dict[Unit, tuple[int, Unit]] = {}
    goes_on = True
    while goes_on:
        goes_on = False
        for unit, queue in queues.items():
            while queue:
                index, head = queue[0]
                givers = [giver for giver in Unit if head.waits >> giver & 1]
                lacking = [giver for giver in givers if not tokens[giver, unit]]
                if lacking:
                    missing[unit] = index, lacking[0]
                    break
                queue.popleft()
                missing.pop(unit, None)
                tokens.subtract((giver, unit) for giver in givers)
                tokens.update((unit, other) for other in Unit if head.signals >> other & 1)
                goes_on = True
    return missing
