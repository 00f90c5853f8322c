"""Runs programs on the RTL, cycle by cycle, in Amaranth's simulator."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.sim import Simulator

from adagp.accelerator.rtl.descriptor import Op
from adagp.accelerator.rtl.driver import Command, Rows
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.top import Accelerator


@dataclass
class Trace:
    """What a core did.

    Attributes:
        cycles: Of each command, from the one in which its descriptor is taken over until the next can be.
        total_cycles: Of all, with those that were spent waiting for the other core.
    """

    cycles: list[int] = field(default_factory=list)
    total_cycles: int = 0


class Bench:
    """A design in the simulator, and around it a machine that gives and takes words."""

    def __init__(self, cores: Mapping[str, CoreGeometry], words_every: int = 1) -> None:
        """Every `run` starts from reset.

        Args:
            cores: Of the design.
            words_every: In how many cycles the machine has one row of words to give.
        """
        self.geometries = dict(cores)
        self._words_every = words_every
        self._simulator: Simulator | None = None
        self._programs: Mapping[str, Sequence[Command]] = {}
        self._traces: dict[str, Trace] = {}

    def run(self, programs: Mapping[str, Sequence[Command]]) -> dict[str, Trace]:
        """Run a program on each core, all from the same cycle on; a core without one stays idle."""
        self._programs = programs
        self._traces = {unit: Trace() for unit in self.geometries}
        if self._simulator is None:
            design = Accelerator(self.geometries)
            self._simulator = Simulator(design)
            self._simulator.add_clock(1e-6)
            for unit in self.geometries:
                self._simulator.add_testbench(self._machine(unit, _Ports(design, unit)))
        else:
            self._simulator.reset()
        self._simulator.run()
        return self._traces

    def _machine(self, unit: str, ports: "_Ports") -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def machine(context: Any) -> None:
            trace = self._traces[unit]
            for command in self._programs.get(unit, ()):
                waited, cycles, rows = await _run(context, ports, command, self._words_every)
                command.keep(rows)
                trace.cycles.append(cycles)
                trace.total_cycles += waited + cycles

        return machine


class _Ports:
    """The ports of one core of an accelerator, without the core's name before theirs."""

    def __init__(self, design: Accelerator, unit: str) -> None:
        self._design, self._unit = design, unit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._design, f"{self._unit}_{name}")


async def _run(context: Any, ports: _Ports, command: Command, words_every: int) -> tuple[int, int, Rows]:
    """Cycles until a descriptor is taken over, cycles from then on, and the rows that came out."""
    context.set(ports.descriptor.as_value(), command.descriptor.encode())
    context.set(ports.valid, 1)
    waited, taken = -1, False
    while not taken:  # as seen at the clock's edge: the other core's testbench may still change it before
        *_, taken = await context.tick().sample(ports.ready)
        waited += 1
    context.set(ports.valid, 0)
    rows: Rows = []
    cycles, given, entering = 1, False, iter(command.words())
    row = next(entering, None)
    drains = command.descriptor.op is Op.DRAIN  # looking at ports is what takes the time, so none is without need
    while context.get(ports.busy):
        there = row is not None and cycles % words_every == 0
        if there != given:
            context.set(ports.words_valid, there)
            given = there
        if row is not None and there and context.get(ports.words_ready):
            for signal, word in zip(ports.words, row, strict=False):
                context.set(signal, word)
            row = next(entering, None)
        if drains and context.get(ports.results_valid):
            rows.append([context.get(signal) for signal in ports.results])
        await context.tick()
        cycles += 1
    return waited, cycles, rows
