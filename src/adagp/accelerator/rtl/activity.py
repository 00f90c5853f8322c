"""The switching of every net of a design in standard cells, while it runs a program.

Amaranth's simulator runs the program and gives the ports of every component in every cycle. They drive the netlists,
each module once for all its instances: a net's values in them are the bits of one integer. Gates take no time, so a net
changes at most once a cycle: glitches are not counted. What the gates send out is compared with what the RTL sent.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from amaranth.hdl import Fragment, Value
from amaranth.lib.wiring import Flow
from amaranth.sim import Simulator

from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.liberty import Bits
from adagp.accelerator.rtl.library import Parts
from adagp.accelerator.rtl.netlist import Net, Netlist, in_order, instance_paths
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import Accelerator

RESET = "rst"


@dataclass
class Activity:
    """What happened in all instances of one module.

    Attributes:
        instances: Their number.
        cycles: Cycles that were watched.
        rises: How often each net rose.
        falls: How often each net fell.
        differences: Port values that differ from the RTL's.
        reads: Words that were read from a bank: its port was enabled with a new address.
        writes: Words that were written to a bank.
    """

    instances: int
    cycles: int = 0
    rises: Counter[Net] = field(default_factory=Counter)
    falls: Counter[Net] = field(default_factory=Counter)
    differences: int = 0
    reads: int = 0
    writes: int = 0


class GateSimulation:
    """A module in standard cells, clocked for many instances at once; only what changes is computed."""

    def __init__(self, netlist: Netlist, instances: int) -> None:
        """All nets are 0, then all registers are reset."""
        self._ones = (1 << instances) - 1
        self.activity = Activity(instances)
        self.values: dict[Net, Bits] = defaultdict(int, {"1": self._ones})
        self._gates = [
            (gate.pins[pin][0], netlist.cell(gate).outputs[pin].function, {p: n[0] for p, n in gate.pins.items()})
            for gate, pin in in_order(netlist)
        ]
        self._readers: dict[Net, list[int]] = defaultdict(list)
        for place, (out, _, pins) in enumerate(self._gates):
            for net in set(pins.values()) - {out}:
                self._readers[net].append(place)
        self._registers = [(gate.pins["Q"][0], gate.pins["D"][0]) for gate in netlist.gates if netlist.cell(gate).clock]
        self._queue: list[int] = list(range(len(self._gates)))
        self._queued = set(self._queue)
        self._counts = False

    def set(self, net: Net, value: Bits) -> None:
        """Change a net that no gate drives."""
        changed = self.values[net] ^ value
        if not changed:
            return
        self.values[net] = value
        if self._counts:
            rose = (changed & value).bit_count()
            self.activity.rises[net] += rose
            self.activity.falls[net] += changed.bit_count() - rose
        for place in self._readers.get(net, ()):
            if place not in self._queued:
                self._queued.add(place)
                heappush(self._queue, place)

    def settle(self) -> None:
        """Compute all gates whose inputs changed."""
        values = self.values
        while self._queue:
            place = heappop(self._queue)
            self._queued.discard(place)
            out, function, pins = self._gates[place]
            assert function is not None
            self.set(out, function({pin: values[net] for pin, net in pins.items()}, self._ones))

    def clock(self, counts: bool = True) -> None:
        """Let every register take its input; changes from here on are counted or not."""
        new = [(out, self.values[data]) for out, data in self._registers if self.values[data] != self.values[out]]
        self._counts = counts
        for out, value in new:
            self.set(out, value)


class WatchedBench(Bench):
    """Amaranth's simulator with the netlists of the same design beside it."""

    def __init__(
        self, cores: Mapping[str, CoreGeometry], modules: Mapping[str, Netlist], timing: Timing | None = None
    ) -> None:
        """A bench for one run, of the design that the netlists were made from."""
        super().__init__(cores, timing)
        self._modules, self._paths = modules, defaultdict[str, list[tuple[str, ...]]](list)
        for path, kind in instance_paths(modules):
            self._paths[kind].append(path)
        self._gates = {
            name: GateSimulation(netlist, len(self._paths[name])) for name, netlist in modules.items() if netlist.gates
        }
        self._banks = {name: Activity(len(self._paths[name])) for name in modules if modules[name].is_bank}
        self.streamed = dict.fromkeys(cores, 0)
        """Rows that streamed through the array of each core."""

    @property
    def activity(self) -> dict[str, Activity]:
        """What happened in each module; modules that only connect others are left out."""
        return {**{name: gates.activity for name, gates in self._gates.items()}, **self._banks}

    def _made(self, design: Accelerator) -> Simulator:
        parts = Parts(design)
        simulator = Simulator(Fragment.get(design, parts))
        signals: dict[tuple[str, ...], dict[str, tuple[bool, Value]]] = {}
        for path, component in parts.found.items():
            signals[path] = {
                "__".join(map(str, name)): (member.flow is Flow.Out, Value.cast(signal))
                for name, member, signal in component.signature.flatten(component)
            }
        simulator.add_process(self._watch(signals))
        return simulator

    def _watch(self, signals: Mapping[tuple[str, ...], Mapping[str, tuple[bool, Value]]]) -> Any:
        sampled = [(path, port, value) for path, ports in signals.items() for port, (_, value) in ports.items()]
        drives, expects, banks = _Wiring(), _Wiring(), {}
        for kind, gates in self._gates.items():
            for bit, path in enumerate(self._paths[kind]):
                netlist = self._modules[kind]
                for port, each in netlist.ports.items():
                    (drives if each.is_input else expects).add((path, port), gates, bit, each.nets)
                for instance in netlist.instances:
                    for port, nets in instance.pins.items():
                        is_input = self._modules[instance.kind].ports[port].is_input
                        (expects if is_input else drives).add(((*path, instance.name), port), gates, bit, nets)
        for kind, activity in self._banks.items():
            banks.update(dict.fromkeys(self._paths[kind], activity))
        self._reset()

        async def watch(context: Any) -> None:
            before: dict[tuple[tuple[str, ...], str], int] = {}
            ticks = context.tick().sample(*(value for _, _, value in sampled))
            while True:
                _, _, *values = await ticks
                now = {
                    (path, port): value & (1 << len(signal)) - 1
                    for (path, port, signal), value in zip(sampled, values, strict=True)
                }
                drives.apply(now, before)
                for gates in self._gates.values():
                    gates.settle()
                expects.compare(now)
                for unit in self.cores:
                    self.streamed[unit] += now[(unit, "controller"), "streams"]
                for path, activity in banks.items():
                    _count(activity, path, now, before)
                for gates in self._gates.values():
                    gates.activity.cycles += 1
                    gates.clock()
                before = now

        return watch

    def _reset(self) -> None:
        for kind, gates in self._gates.items():
            port = self._modules[kind].ports.get(RESET)
            for value in (1, 0):
                if port is not None:
                    gates.set(port.nets[0], value * ((1 << gates.activity.instances) - 1))
                gates.settle()
                gates.clock(counts=value == 0)


class _Wiring:
    """Which nets of which netlists a port of a component is."""

    def __init__(self) -> None:
        self._places: dict[tuple[tuple[str, ...], str], list[tuple[GateSimulation, int, tuple[Net, ...]]]] = {}

    def add(self, port: tuple[tuple[str, ...], str], gates: GateSimulation, bit: int, nets: tuple[Net, ...]) -> None:
        self._places.setdefault(port, []).append((gates, bit, nets))

    def apply(self, now: Mapping[Any, int], before: Mapping[Any, int]) -> None:
        for port, places in self._places.items():
            if port not in now:  # clock and reset
                continue
            changed = now[port] ^ before.get(port, 0)
            while changed:
                place = (changed & -changed).bit_length() - 1
                changed &= changed - 1
                for gates, bit, nets in places:
                    gates.set(nets[place], gates.values[nets[place]] ^ 1 << bit)

    def compare(self, now: Mapping[Any, int]) -> None:
        for port, places in self._places.items():
            if port not in now:
                continue
            for gates, bit, nets in places:
                sent = sum((gates.values[net] >> bit & 1) << place for place, net in enumerate(nets))
                gates.activity.differences += sent != now[port]


def _count(activity: Activity, path: tuple[str, ...], now: Mapping[Any, int], before: Mapping[Any, int]) -> None:
    activity.cycles += 1
    address = path, "read_address"
    activity.reads += bool(now[path, "read_enable"] and now[address] != before.get(address))
    activity.writes += now[path, "write_enable"]
