"""An estimate of the wires between cells, as nothing is placed or routed.

A module's cells and instances are blocks of equal size on a square. Donath (IEEE Trans. Circuits and Systems 26(4),
1979) gives the mean length of their connections from their number N and Rent's exponent p, in steps of one block:

    2/9 (7 (N^(p-1/2) - 1) / (4^(p-1/2) - 1) - (1 - N^(p-3/2)) / (1 - 4^(p-3/2))) (1 - 4^(p-1)) / (1 - N^(p-1))

Each pin that a net drives is one such connection. A module without gates of its own is an array, whose instances are
connected to their neighbours: one step. Pitch and capacitance of a wire are those of metal 2 and 3 in the cells' LEF
file. The area is that of all wires, spread over the four layers of metal 2 to 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from adagp.accelerator.rtl.netlist import Netlist

RENT_EXPONENT = 0.6
"""Landman and Russo (IEEE Trans. Computers 20(12), 1971) found 0.57 to 0.75 in logic."""
PITCH_UM = 0.9
"""Mean of 0.8 um (metal 2) and 1.0 um (metal 3)."""
LAYERS = 4
PF_PER_UM = ((0.3 * 1.9e-5 + 2 * 6.0e-5) + (0.3 * 1.3e-5 + 2 * 5.4e-5)) / 2
"""Width times capacitance of the area, and both edges; mean of metal 2 and 3."""


@dataclass(frozen=True)
class Wires:
    """The wires of one module, without those inside its instances.

    Attributes:
        connections: From the driver of a net to each pin.
        length_um: Mean length of one.
    """

    connections: int
    length_um: float

    @property
    def area_um2(self) -> float:
        """Area that they take in each of the routing layers."""
        return self.connections * self.length_um * PITCH_UM / LAYERS

    @property
    def pf(self) -> float:
        """Capacitance of one."""
        return self.length_um * PF_PER_UM


def module_wires(modules: Mapping[str, Netlist]) -> dict[str, Wires]:
    """The wires of every module; a module comes after those inside it."""
    areas: dict[str, float] = {}
    found = {}
    for name, netlist in modules.items():
        areas[name] = netlist.area_um2 + sum(areas[each.kind] for each in netlist.instances)
        blocks = len(netlist.gates) + sum(not modules[each.kind].is_bank for each in netlist.instances)
        pins = sum(len(netlist.cell(gate).inputs) for gate in netlist.gates) + sum(
            len(nets)
            for each in netlist.instances
            for pin, nets in each.pins.items()
            if modules[each.kind].ports[pin].is_input
        )
        steps = mean_length(blocks) if netlist.gates and blocks > 1 else float(blocks > 1)
        found[name] = Wires(pins, steps * sqrt(areas[name] / blocks) if blocks else 0.0)
    return found


def mean_length(blocks: int, p: float = RENT_EXPONENT) -> float:
    """Donath's mean length of a connection between blocks on a square, in steps of one block."""
    near = 7 * (blocks ** (p - 0.5) - 1) / (4 ** (p - 0.5) - 1)
    far = (1 - blocks ** (p - 1.5)) / (1 - 4 ** (p - 1.5))
    return float(2 / 9 * (near - far) * (1 - 4 ** (p - 1)) / (1 - blocks ** (p - 1)))
