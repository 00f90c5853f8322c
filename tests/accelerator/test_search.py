import pytest

from adagp.accelerator import Array, LayerOp, LayerShape, Machine, Pass, network, pass_cost
from adagp.accelerator.search import search

WORKS = [
    LayerOp("a", "convolution", LayerShape(3, 17, (9, 9), (3, 3), batch=2), (Pass.FORWARD, Pass.WEIGHT_GRAD)),
    LayerOp("b", "convolution", LayerShape(17, 5, (9, 9), (1, 1), batch=2), tuple(Pass)),
]


def cycles(ops, rows, columns, dataflow):
    return sum(pass_cost(op.shape, which, Array(rows, columns), dataflow).cycles for op in ops for which in op.passes)


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_no_shape_under_the_budget_is_faster(dataflow):
    (found,) = search(WORKS, 30, dataflows=[dataflow])
    shapes = [(rows, columns) for rows in range(1, 31) for columns in range(1, 31) if rows * columns <= 30]
    assert found.tried == len(shapes)
    assert found.cycles == min(cycles(WORKS, *shape, dataflow) for shape in shapes)
    assert found.cycles == cycles(WORKS, found.array.rows, found.array.columns, dataflow)


def test_row_stationary_weighs_the_tallest_array_of_each_width():
    (found,) = search(WORKS, 12, dataflows=["rs"])
    shapes = [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert found.tried == len(shapes)
    assert found.cycles == min(cycles(WORKS, *shape, "rs") for shape in shapes)


def test_fastest_dataflow_first_with_progress_and_the_machines_memories():
    told = []
    machine = Machine(Array(buffer_words=50_000))
    found = search(network("vgg13", "cifar10", 4), 20, machine, ["ws", "os", "is"], told.append)
    assert [entry.cycles for entry in found] == sorted(entry.cycles for entry in found)
    assert len(told) == 3
    assert all(entry.array.buffer_words == 50_000 for entry in found)


def test_no_pe_is_refused():
    with pytest.raises(ValueError, match=r"pes=0: must be at least 1"):
        search(WORKS, 0)


def test_more_arrays_than_anybody_waits_for_are_refused():
    with pytest.raises(ValueError, match=r"pes=1000000000: .*at most 4,096"):
        search(WORKS, 10**9)
