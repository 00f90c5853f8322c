"""The best array shape and dataflow for a network under a budget of PEs."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from adagp.accelerator.array import DATAFLOWS, Array
from adagp.accelerator.layer_costs import network_costs
from adagp.accelerator.machine import Machine
from adagp.accelerator.shapes import require_count
from adagp.accelerator.systolic import SYSTOLIC
from adagp.accelerator.workload import LayerOp


@dataclass(frozen=True)
class BestArray:
    """The fastest array of one dataflow for one network.

    Attributes:
        dataflow: Dataflow of the array.
        array: The array, with the given machine's memories.
        cycles: Cycles of one batch of plain backpropagation, without stalls and without a vector unit.
        tried: Number of shapes tried.
    """

    dataflow: str
    array: Array
    cycles: int
    tried: int


MOST_PES = 4096  # every shape is tried


def search(
    ops: Sequence[LayerOp],
    pes: int,
    machine: Machine | None = None,
    dataflows: Sequence[str] = DATAFLOWS,
    tell: Callable[[str], None] = lambda text: None,
) -> list[BestArray]:
    """The array on which plain backpropagation is fastest, for each dataflow; the fastest dataflow comes first.

    Under the systolic dataflows every shape with at most `pes` PEs is tried. Under `rs`, whose mapping is itself a
    search, only the tallest array for each number of columns is tried.

    Args:
        ops: The network.
        pes: The largest number of PEs.
        machine: The machine whose memories the arrays have.
        dataflows: The dataflows to try.
        tell: Called with a line of progress.

    Raises:
        ValueError: If there is no PE.
    """
    require_count("pes", pes, MOST_PES)
    machine = machine or Machine()
    found = []
    for dataflow in dataflows:
        tell(f"trying arrays of at most {pes} PEs under {dataflow}")
        shapes = list(_tallest(pes) if dataflow == "rs" else _all(pes))
        cycles = _mapped_cycles(ops, machine) if dataflow == "rs" else _systolic_cycles(ops, dataflow)
        best = min(shapes, key=lambda shape: (cycles(*shape), shape))
        array = replace(machine.array, rows=best[0], columns=best[1])
        found.append(BestArray(dataflow, array, cycles(*best), len(shapes)))
    return sorted(found, key=lambda entry: entry.cycles)


def _all(pes: int) -> Iterator[tuple[int, int]]:
    return ((rows, columns) for rows in range(1, pes + 1) for columns in range(1, pes // rows + 1))


def _tallest(pes: int) -> Iterator[tuple[int, int]]:
    """One array for each number of rows that the budget allows for some number of columns."""
    rows = sorted({pes // columns for columns in range(1, pes + 1)})
    return ((high, pes // high) for high in rows)


def _systolic_cycles(ops: Sequence[LayerOp], dataflow: str) -> Callable[[int, int], int]:
    products = Counter(op.shape.gemm(which) for op in ops for which in op.passes)
    form = SYSTOLIC[dataflow].cycles
    return lambda rows, columns: sum(count * form(gemm, rows, columns) for gemm, count in products.items())


def _mapped_cycles(ops: Sequence[LayerOp], machine: Machine) -> Callable[[int, int], int]:
    def cycles(rows: int, columns: int) -> int:
        array = replace(machine.array, rows=rows, columns=columns)
        layers = network_costs(ops, replace(machine, array=array, dataflow="rs"))
        return sum(cost.cycles for layer in layers for cost in layer.costs.values())

    return cycles
