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
    """The cycles of one core.

    Attributes:
        cycles: Cycles of each command, from the acceptance of its descriptor until the next can be accepted.
        total_cycles: Cycles of all commands, with those spent waiting for the other core.
    """

    cycles: list[int] = field(default_factory=list)
    total_cycles: int = 0


class Bench:
    """A design in the simulator, and a machine around it that supplies and receives words."""

    def __init__(self, cores: Mapping[str, CoreGeometry], words_every: int = 1) -> None:
        """Every `run` starts from reset.

        Args:
            cores: The design's cores.
            words_every: Cycles between two rows of words that the machine supplies.
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
    """The ports of one core of an accelerator, without the core's name as prefix."""

    def __init__(self, design: Accelerator, unit: str) -> None:
        self._design, self._unit = design, unit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._design, f"{self._unit}_{name}")


async def _run(context: Any, ports: _Ports, command: Command, words_every: int) -> tuple[int, int, Rows]:
    """Cycles until a descriptor is accepted, cycles from then on, and the drained rows."""
    context.set(ports.descriptor.as_value(), command.descriptor.encode())
    context.set(ports.valid, 1)
    waited, taken = -1, False
    while not taken:  # sampled at the clock edge: until then the other core's testbench may change it
        *_, taken = await context.tick().sample(ports.ready)
        waited += 1
    context.set(ports.valid, 0)
    rows: Rows = []
    cycles, given, entering = 1, False, iter(command.words())
    row = next(entering, None)
    drains = command.descriptor.op is Op.DRAIN  # reading ports takes most of the time, so only needed ones are read
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
