"""Dynamic power and leakage of a design: the switching of its nets, and the energies of the cell library.

- internal: what the library's tables give for every change of a pin, at the net's load and a transition of 0.2 ns.
- switching: half the load's capacitance times the square of the voltage for every change, wires included.
- clock: both of these in the clock pins of registers, twice in every cycle: no clock is gated, and there is no tree.
- leakage: the library's.
- buffers: words that the banks read and write, each at what Eyeriss' table gives for a word from the global buffer (6
  multiply-accumulates), times the energy of one on our own PEs. DRAM is outside the chip.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from adagp.accelerator.designs import Design
from adagp.accelerator.energy import BUFFER_COST, WORD_BITS
from adagp.accelerator.rtl.activity import Activity, GateSimulation, WatchedBench
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.integer_network import random_network
from adagp.accelerator.rtl.liberty import FALL, RISE, VOLTS, Energy
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.netlist import OUTPUT_LOAD_PF, Net, Netlist, instance_counts, mapped
from adagp.accelerator.rtl.pe import PE
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.top import Accelerator
from adagp.accelerator.rtl.wires import module_wires
from adagp.schedules import Phase

TRANSITION_NS = 0.2
LAYER, SAMPLES, GRID, TIMING = Convolution(12, 15, (6, 6)), 2, 2, Timing(bandwidth_words=16, latency_cycles=4)
"""What runs: a convolution of one tap that fills 12x15 PEs, with uniformly distributed operands of 13 bits."""


@dataclass(frozen=True)
class BatchEnergy:
    """The energy of one batch, in pJ, and what leaks in the meantime.

    Attributes:
        cycles: Cycles of the batch.
        internal_pj: Inside cells.
        switching_pj: On nets.
        clock_pj: In clock pins.
        pe_pj: The part of these three in PEs.
        leakage_nw: Leakage of all cells.
        buffer_words: Words of 16 bits that banks read and wrote.
        macs: Multiply-accumulates of all PEs: PEs times rows that stream.
        differences: Ports of the netlists that differed from the RTL, over all cycles.
    """

    cycles: int
    internal_pj: float
    switching_pj: float
    clock_pj: float
    pe_pj: float
    leakage_nw: float
    buffer_words: float
    macs: int
    differences: int

    def milliwatts(self, clock_ns: float, mac_pj: float) -> dict[str, float]:
        """Power at a clock, part by part; `logic` is all but the buffers, whose words cost multiply-accumulates."""
        time_ns = self.cycles * clock_ns  # pJ in a ns are mW
        parts = {
            "internal": (self.internal_pj + self.clock_pj) / time_ns,
            "switching": self.switching_pj / time_ns,
            "leakage": self.leakage_nw / 1e6,
        }
        buffers = self.buffer_words * BUFFER_COST * mac_pj / time_ns
        logic = sum(parts.values())
        return {**parts, "logic": logic, "buffers": buffers, "logic and buffers": logic + buffers}

    @property
    def mac_pj(self) -> float:
        """Energy of a multiply-accumulate: all that PEs take, by the number of these."""
        return self.pe_pj / self.macs


def batch_energy(
    design: Design, phase: Phase, cores: Mapping[str, CoreGeometry], modules: Mapping[str, Netlist] | None = None
) -> BatchEnergy:
    """Run a batch of one layer on the RTL and on the netlists, and add up the energy of every change.

    Raises:
        ToolError: If yosys or the standard cells are missing.
    """
    modules = modules or mapped(Accelerator(dict(cores)))
    rng = np.random.default_rng(0)
    network = random_network([LAYER], rng, grid=GRID)
    memory = MemoryMap(network, SAMPLES)
    images = rng.integers(-4096, 4096, (SAMPLES, LAYER.c_in, *LAYER.image))
    grads = rng.integers(-4096, 4096, (SAMPLES, LAYER.c_out, *LAYER.out))
    dram = memory.filled(images, grads)
    programs = BatchPrograms(design, cores, memory).batch(phase)
    bench = WatchedBench(cores, modules, TIMING)
    traces = bench.run({unit: program.descriptors for unit, program in programs.items()}, dram)
    macs = sum(cores[unit].rows * cores[unit].columns * rows for unit, rows in bench.streamed.items())
    return energy(modules, bench.activity, max(trace.cycles for trace in traces.values()), macs)


def energy(modules: Mapping[str, Netlist], activity: Mapping[str, Activity], cycles: int, macs: int) -> BatchEnergy:
    """The energy of what happened."""
    lengths = module_wires(modules)
    loads = _port_loads(modules, {name: wires.pf for name, wires in lengths.items()})
    total: dict[str, float] = defaultdict(float)
    for name, did in activity.items():
        if modules[name].is_bank:
            width = len(modules[name].ports["read_data"].nets)
            total["words"] += (did.reads + did.writes) * width / WORD_BITS
            continue
        parts = _Module(modules[name], loads[name], lengths[name].pf).energy(did)
        for what, pj in parts.items():
            total[what] += pj
        if name.startswith("pe_"):
            total["pe"] += sum(parts.values())
        total["differences"] += did.differences
    counts = instance_counts(modules)
    leakage = sum(
        counts[name] * netlist.cell(gate).leakage_nw for name, netlist in modules.items() for gate in netlist.gates
    )
    return BatchEnergy(
        cycles,
        total["internal"],
        total["switching"],
        total["clock"],
        total["pe"],
        leakage,
        total["words"],
        macs,
        int(total["differences"]),
    )


def _port_loads(modules: Mapping[str, Netlist], wire_pf: Mapping[str, float]) -> dict[str, dict[Net, float]]:
    """The capacitance of every net of every module: pins, wires, and the inputs of instances."""
    found: dict[str, dict[Net, float]] = {}
    for name, netlist in modules.items():
        load: dict[Net, float] = defaultdict(float)
        for gate in netlist.gates:
            for pin, each in netlist.cell(gate).inputs.items():
                load[gate.pins[pin][0]] += each.capacitance_pf + wire_pf[name]
        for instance in netlist.instances:
            child = modules[instance.kind]
            for pin, nets in instance.pins.items():
                if child.ports[pin].is_input:
                    for net, inner in zip(nets, child.ports[pin].nets, strict=True):
                        load[net] += found[instance.kind].get(inner, 0.0) + wire_pf[name]
        for port in netlist.ports.values():
            if not port.is_input:
                for net in port.nets:
                    load[net] += OUTPUT_LOAD_PF
        found[name] = load
    return found


class _Module:
    """The energies of one module's nets."""

    def __init__(self, netlist: Netlist, loads: Mapping[Net, float], wire_pf: float) -> None:
        self._netlist, self._loads, self._wire_pf = netlist, loads, wire_pf

    def energy(self, did: Activity) -> dict[str, float]:
        """Energy of all instances, in pJ."""
        found: dict[str, float] = defaultdict(float)
        inputs = set(chain.from_iterable(port.nets for port in self._netlist.ports.values() if port.is_input))
        for net, rises in did.rises.items():
            if net not in inputs:  # the net's driver is outside, and counts it there
                found["switching"] += (rises + did.falls[net]) * self._loads.get(net, 0.0) * VOLTS**2 / 2
        for gate in self._netlist.gates:
            cell = self._netlist.cell(gate)
            for pin, each in (*cell.inputs.items(), *cell.outputs.items()):
                if not each.energies or pin == cell.clock:
                    continue
                net = gate.pins[pin][0]
                rise, fall = _mean(each.energies, self._loads.get(net, 0.0))
                found["internal"] += did.rises[net] * rise + did.falls[net] * fall
        found["clock"] = did.cycles * did.instances * self._clock_pj
        return found

    @cached_property
    def _clock_pj(self) -> float:
        """Energy of one cycle in the clock pins of an instance."""
        pins = [each.inputs[each.clock] for each in map(self._netlist.cell, self._netlist.gates) if each.clock]
        inside = sum(sum(_mean(pin.energies, 0.0)) for pin in pins)
        return inside + sum(pin.capacitance_pf + self._wire_pf for pin in pins) * VOLTS**2


def _mean(energies: tuple[Energy, ...], load: float) -> tuple[float, float]:
    """Energy of a rise and of a fall, the mean over the inputs that may have caused it."""

    def of(edge: int) -> float:
        tables = [each.tables[edge] for each in energies]
        found = [table.at(load, TRANSITION_NS) if table.second else table.at(TRANSITION_NS) for table in tables]
        return sum(found) / len(found)

    return of(RISE), of(FALL)


def mac_energy_pj(cycles: int = 200, seed: int = 0) -> float:
    """Energy of one multiply-accumulate: a PE alone that has uniformly distributed operands in every cycle.

    Raises:
        ToolError: If yosys or the standard cells are missing.
    """
    size, rng = CoreGeometry(), np.random.default_rng(seed)
    modules = mapped(PE(size.width, size.sum_width))
    (netlist,) = modules.values()
    gates = GateSimulation(netlist, 1)

    def drive(port: str, value: int) -> None:
        for place, net in enumerate(netlist.ports[port].nets):
            gates.set(net, value >> place & 1)

    drive("weight_below", int(rng.integers(-4096, 4096)))
    drive("load", 1)
    gates.settle()
    gates.clock()
    drive("load", 0)
    gates.activity.rises.clear()
    gates.activity.falls.clear()
    for _ in range(cycles):
        drive("input_left", int(rng.integers(-4096, 4096)))
        drive("sum_above", int(rng.integers(-(2**30), 2**30)))
        gates.settle()
        gates.clock()
        gates.activity.cycles += 1
    return energy(modules, {netlist.name: gates.activity}, cycles, cycles).mac_pj
