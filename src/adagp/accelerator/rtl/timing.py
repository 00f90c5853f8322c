"""Static timing of a design in standard cells: the longest path of every module, and across them.

Delays are the cell library's, by load and transition, with the wires that `wires` estimates. Each module is analysed
once and then stands in its parents for all its instances, with the delay from each input to each output. Transitions
start at zero at registers' clocks and at inputs, as in OpenSTA, with which a test compares the longest path of a PE
without wires. The clock is ideal: it has no tree and no skew.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.rtl.liberty import Arc, standard_cells
from adagp.accelerator.rtl.netlist import OUTPUT_LOAD_PF, Gate, Net, Netlist
from adagp.accelerator.rtl.wires import module_wires

CLOCK = "clk"
_BUFFER, _BUFFER_LOAD_PF, _BUFFER_TRANSITION_NS = "BUFX4", 0.15, 0.2
_BANK_PIN_PF = 0.02
_NEVER = float("-inf")
Times = NDArray[np.float64]
"""Latest arrival after each source: the clock first, then every input port."""


@dataclass(frozen=True)
class Path:
    """The longest path of some kind.

    Attributes:
        ns: Its delay, with the setup time of the register that it ends in.
        start: The register, port or instance where it starts.
        end: Where it ends.
        cells: Standard cells on the way, those inside instances left out.
    """

    ns: float
    start: str
    end: str
    cells: int


@dataclass
class ModuleTiming:
    """A module as its parents see it; ports as wholes, times in ns.

    Attributes:
        name: The module.
        inside: From register to register.
        arrives: From the clock to each output.
        through: From an input to an output.
        setup: From an input to a register.
        transition: Of each output.
        load: Capacitance of each bit of each input, pF.
    """

    name: str
    inside: Path | None = None
    arrives: dict[str, float] = field(default_factory=dict)
    through: dict[tuple[str, str], float] = field(default_factory=dict)
    setup: dict[str, float] = field(default_factory=dict)
    transition: dict[str, float] = field(default_factory=dict)
    load: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def worst_ns(self) -> float:
        """The longest path that touches the module: inside it, into it or out of it."""
        inside = self.inside.ns if self.inside else 0.0
        return max([inside, *self.arrives.values(), *self.through.values(), *self.setup.values()])


def timing(modules: Mapping[str, Netlist], wires: bool = True) -> dict[str, ModuleTiming]:
    """The timing of every module; a memory answers at once, so what it takes comes on top."""
    lengths = module_wires(modules)
    found: dict[str, ModuleTiming] = {}
    for name, netlist in modules.items():
        pf = lengths[name].pf if wires else 0.0
        found[name] = _bank(netlist) if netlist.is_bank else _Analysis(netlist, found, pf).result()
    return found


def _bank(netlist: Netlist) -> ModuleTiming:
    ports = netlist.ports
    return ModuleTiming(
        netlist.name,
        arrives={name: 0.0 for name, port in ports.items() if not port.is_input},
        setup={name: 0.0 for name, port in ports.items() if port.is_input and name != CLOCK},
        transition={name: 0.0 for name, port in ports.items() if not port.is_input},
        load={name: (_BANK_PIN_PF,) * len(port.nets) for name, port in ports.items() if port.is_input},
    )


class _Analysis:
    """The arrivals of one module, gate by gate in the order of the signals."""

    def __init__(self, netlist: Netlist, children: Mapping[str, ModuleTiming], wire_pf: float) -> None:
        self._netlist, self._children = netlist, children
        self._inputs = [name for name, port in netlist.ports.items() if port.is_input and name != CLOCK]
        self._between: set[Net] = set()
        self._load = self._loads(wire_pf)
        # By net and edge: arrivals, the transition, and the step before on the longest path from the clock.
        self._at: dict[tuple[Net, int], Times] = {}
        self._transition: dict[tuple[Net, int], float] = defaultdict(float)
        self._before: dict[tuple[Net, int], tuple[Net, int]] = {}
        self._starts: dict[Net, str] = {}
        self._begin()
        for _, gate, pin in self._ordered():
            if gate.kind in standard_cells():
                self._pass(gate, pin)
            else:
                self._pass_instance(gate, pin)

    def _loads(self, wire_pf: float) -> dict[Net, float]:
        load: dict[Net, float] = defaultdict(float)
        for gate in self._netlist.gates:
            for pin, each in self._netlist.cell(gate).inputs.items():
                load[gate.pins[pin][0]] += each.capacitance_pf + wire_pf
        for instance in self._netlist.instances:
            child = self._children[instance.kind]
            for pin, nets in instance.pins.items():
                self._between.update(nets)
                for net, pf in zip(nets, child.load.get(pin, ()), strict=False):
                    load[net] += pf + wire_pf
        for port in self._netlist.ports.values():
            if not port.is_input:
                for net in port.nets:
                    load[net] += OUTPUT_LOAD_PF
        return load

    def _begin(self) -> None:
        """Set the arrivals of inputs and at registers, and of what instances send from theirs."""
        size = 1 + len(self._inputs)
        for place, name in enumerate(self._inputs, start=1):
            for net in self._netlist.ports[name].nets:
                self._arrive(net, _alone(size, place, 0.0), 0.0)
        for gate in self._netlist.gates:
            cell = self._netlist.cell(gate)
            for pin, each in cell.outputs.items():
                for arc in each.arcs:
                    if arc.clocked:
                        net = gate.pins[pin][0]
                        self._starts[net] = gate.name
                        for edge in (0, 1):
                            delay, change = self._delays(arc, net, edge, 0.0)
                            self._keep((net, edge), _alone(size, 0, delay), change, None)
        for instance in self._netlist.instances:
            child = self._children[instance.kind]
            for pin, ns in child.arrives.items():
                for net in instance.pins[pin]:
                    self._starts[net] = f"{instance.name}.{pin}"
                    self._arrive(net, _alone(size, 0, ns), child.transition[pin])

    def _arrive(self, net: Net, times: Times, transition: float) -> None:
        for edge in (0, 1):
            self._keep((net, edge), times + self._tree_ns(net), transition, None)

    def _ordered(self) -> Iterator[tuple[tuple[Net, ...], Gate, str]]:
        """Outputs of gates and instances after all that they depend on."""
        waiting: dict[int, int] = {}
        readers: dict[Net, list[int]] = defaultdict(list)
        nodes: list[tuple[tuple[Net, ...], Gate, str]] = []
        drivers: dict[Net, set[int]] = defaultdict(set)
        needs: list[set[Net]] = []
        for gate, pin, sources in self._nodes():
            place = len(nodes)
            nodes.append((gate.pins[pin], gate, pin))
            needs.append({net for net in sources if isinstance(net, int)})
            for net in gate.pins[pin]:
                drivers[net].add(place)
        for place, nets in enumerate(needs):
            mine = [net for net in nets if drivers.get(net)]
            waiting[place] = len(mine)
            for net in mine:
                readers[net].append(place)
        ready = [place for place, count in waiting.items() if not count]
        left = {net: len(each) for net, each in drivers.items()}
        done = 0
        while ready:
            place = ready.pop()
            done += 1
            yield nodes[place]
            for net in nodes[place][0]:
                left[net] -= 1
                if not left[net]:
                    for reader in readers[net]:
                        waiting[reader] -= 1
                        if not waiting[reader]:
                            ready.append(reader)
        assert done == len(nodes), f"{self._netlist.name}: a loop without a register"

    def _nodes(self) -> Iterator[tuple[Gate, str, list[Net]]]:
        for gate in self._netlist.gates:
            for pin, each in self._netlist.cell(gate).outputs.items():
                sources = [gate.pins[arc.source][0] for arc in each.arcs if not arc.clocked]
                if sources:
                    yield gate, pin, sources
        for instance in self._netlist.instances:
            depends: dict[str, list[Net]] = defaultdict(list)
            for source, pin in self._children[instance.kind].through:
                depends[pin] += instance.pins[source]
            for pin, nets in depends.items():
                yield instance, pin, nets

    def _pass(self, gate: Gate, pin: str) -> None:
        net = gate.pins[pin][0]
        for arc in self._netlist.cell(gate).outputs[pin].arcs:
            if arc.clocked:
                continue
            source = gate.pins[arc.source][0]
            for edge in (0, 1):
                for from_edge in (edge, 1 - edge) if arc.inverts is None else ((edge ^ arc.inverts),):
                    if (source, from_edge) in self._at:
                        delay, change = self._delays(arc, net, edge, self._transition[source, from_edge])
                        times = self._at[source, from_edge] + delay
                        self._keep((net, edge), times, change, (source, from_edge))

    def _pass_instance(self, gate: Gate, pin: str) -> None:
        child = self._children[gate.kind]
        for (source, target), ns in child.through.items():
            if target == pin:
                for begin, edge in self._edges(gate.pins[source]):
                    for net in gate.pins[pin]:
                        times = self._at[begin, edge] + ns + self._tree_ns(net)
                        self._keep((net, edge), times, child.transition[pin], (begin, edge))

    def _delays(self, arc: Arc, net: Net, edge: int, transition: float) -> tuple[float, float]:
        load = self._load[net]
        tree = 0.0
        if net in self._between:
            load, tree = min(load, _BUFFER_LOAD_PF), self._tree_ns(net)
        return arc.delay[edge].at(load, transition) + tree, arc.transition[edge].at(load, transition)

    def _tree_ns(self, net: Net) -> float:
        """Delay of the buffers that a net between modules takes: ABC sees the load inside one module only."""
        load = self._load[net]
        if net not in self._between or load <= _BUFFER_LOAD_PF:
            return 0.0
        cell = standard_cells()[_BUFFER]
        fan_out = _BUFFER_LOAD_PF / next(iter(cell.inputs.values())).capacitance_pf
        delays = next(iter(cell.outputs.values())).arcs[0].delay
        stage = max(each.at(_BUFFER_LOAD_PF, _BUFFER_TRANSITION_NS) for each in delays)
        return ceil(log(load / _BUFFER_LOAD_PF) / log(fan_out)) * stage

    def _keep(self, key: tuple[Net, int], times: Times, transition: float, before: tuple[Net, int] | None) -> None:
        had = self._at.get(key)
        if before is not None and (had is None or times[0] > had[0]):
            self._before[key] = before
        self._at[key] = times if had is None else np.maximum(had, times)
        self._transition[key] = max(self._transition[key], transition)

    def _edges(self, nets: Iterable[Net]) -> Iterator[tuple[Net, int]]:
        return ((net, edge) for net in nets for edge in (0, 1) if (net, edge) in self._at)

    def result(self) -> ModuleTiming:
        """The module as its parents see it."""
        found = ModuleTiming(self._netlist.name)
        for name, port in self._netlist.ports.items():
            if port.is_input:
                found.load[name] = tuple(self._load[net] for net in port.nets)
                continue
            keys = list(self._edges(port.nets))
            found.transition[name] = max((self._transition[key] for key in keys), default=0.0)
            times = np.max([self._at[key] for key in keys], axis=0) if keys else None
            if times is not None:
                if times[0] > _NEVER:
                    found.arrives[name] = float(times[0])
                for place, source in enumerate(self._inputs, start=1):
                    if times[place] > _NEVER:
                        found.through[source, name] = float(times[place])
        worst: tuple[float, tuple[Net, int], str] | None = None
        for key, extra, end in self._ends():
            times = self._at[key] + extra
            if times[0] > _NEVER and (worst is None or times[0] > worst[0]):
                worst = float(times[0]), key, end
            for place, source in enumerate(self._inputs, start=1):
                if times[place] > found.setup.get(source, _NEVER):
                    found.setup[source] = float(times[place])
        children = [self._children[each.kind].inside for each in self._netlist.instances]
        longest = max((each for each in children if each), key=lambda each: each.ns, default=None)
        own = None if worst is None else self._path(*worst)
        found.inside = max((each for each in (own, longest) if each), key=lambda each: each.ns, default=None)
        return found

    def _ends(self) -> Iterator[tuple[tuple[Net, int], float, str]]:
        """Where paths end, and the time that data must be there before the clock."""
        for gate in self._netlist.gates:
            cell = self._netlist.cell(gate)
            for pin, each in cell.inputs.items():
                if each.setup is not None:
                    for net, edge in self._edges(gate.pins[pin]):
                        yield (net, edge), each.setup[edge].at(0.0, self._transition[net, edge]), gate.name
        for instance in self._netlist.instances:
            for pin, ns in self._children[instance.kind].setup.items():
                for key in self._edges(instance.pins[pin]):
                    yield key, ns, f"{instance.name}.{pin}"

    def _path(self, ns: float, key: tuple[Net, int], end: str) -> Path:
        cells = 0
        while key in self._before and key[0] not in self._starts:
            key = self._before[key]
            cells += 1
        return Path(ns, self._starts.get(key[0], "?"), end, cells)


def _alone(size: int, place: int, ns: float) -> Times:
    times = np.full(size, _NEVER)
    times[place] = ns
    return times
