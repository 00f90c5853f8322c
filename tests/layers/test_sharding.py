"""Which rows a rank holds."""

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adagp.layers import FullyConnected, Layer

COUNTS = st.integers(0, 30)


@given(out=COUNTS, start=COUNTS, size=COUNTS, first=COUNTS, stop=st.none() | COUNTS, step=st.integers(1, 9))
def test_the_rows_of_a_part_are_found_among_those_that_a_rank_holds(
    out: int, start: int, size: int, first: int, stop: int | None, step: int
) -> None:
    module = nn.Linear(1, 1)
    own = slice(min(start, out), min(start + size, out))
    layer = Layer("0", module, FullyConnected(), module.weight, None, out, 1, own=own)
    part = slice(first, stop, step)
    held = range(out)[own]
    assert layer.own_out == len(held)
    assert list(held[layer.own_part(part)]) == [row for row in range(out)[part] if row in held]


def test_a_rank_that_holds_all_rows_has_every_part() -> None:
    module = nn.Linear(1, 4)
    layer = Layer("0", module, FullyConnected(), module.weight, module.bias, 4, 1)
    assert layer.own_out == 4
    assert layer.own_part(slice(1, None, 2)) == slice(1, None, 2)
