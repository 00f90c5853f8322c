"""Where networks can be cut, against a search through their own wiring."""

from itertools import pairwise
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

from adagp.local import choose, problems, trace
from adagp.local.cuts import in_order


def macs(name: str, module: nn.Module, output: Tensor) -> int:
    del name
    return module.weight.numel() * len(output) if isinstance(module, nn.Linear) else 0


class Wired(nn.Module):
    """Layer `i` gets the sum of some earlier outputs; the last one gives the model's output."""

    def __init__(self, wires: list[set[int]], tied: tuple[int, int] | None) -> None:
        super().__init__()
        self.wires = wires
        self.parts = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in wires)
        if tied is not None:
            self.parts[tied[1]].weight = self.parts[tied[0]].weight

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for wires, part in zip(self.wires, self.parts, strict=True):
            outputs.append(part(torch.stack([outputs[one] for one in wires]).sum(0) if wires else x))
        return outputs[-1]


@some.composite
def networks(draw: Any) -> Wired:
    count = draw(some.integers(2, 7))
    earlier = (some.integers(0, place - 1) for place in range(1, count))
    wires: list[set[int]] = [set(), *(draw(some.sets(places, min_size=1, max_size=2)) for places in earlier)]
    pair = draw(some.none() | some.tuples(some.integers(0, count - 1), some.integers(0, count - 1)))
    tied = None if pair is None or pair[0] == pair[1] else (min(pair), max(pair))
    return Wired(wires, tied)


def before(wires: list[set[int]], place: int, without: int | None = None) -> set[int]:
    """The layers that an output depends on, itself included; not beyond `without`."""
    if place == without:
        return set()
    return {place}.union(*(before(wires, one, without) for one in wires[place]))


def can_cut(model: Wired, place: int) -> bool:
    last = len(model.wires) - 1
    early, late = before(model.wires, place), before(model.wires, last, place)
    weights = [{id(model.parts[one].weight) for one in side} for side in (early, late)]
    return not early & late and not weights[0] & weights[1] and bool(late)


@settings(max_examples=60, deadline=None)
@given(networks())
def test_a_cut_is_refused_exactly_where_something_else_crosses(model: Wired) -> None:
    found = trace(model, lambda: model(torch.ones(2, 3)), macs)
    for place in range(len(model.wires)):
        if place not in before(model.wires, len(model.wires) - 1):
            continue  # nothing depends on it
        assert (not found.refuse(f"parts.{place}")) == can_cut(model, place)


def chain() -> nn.Sequential:
    return nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(4, 4), nn.ReLU())], nn.Linear(4, 2))


def test_parts_are_balanced_and_end_behind_the_activation() -> None:
    model = chain()
    found = trace(model, lambda: model(torch.ones(2, 4)), macs)
    assert choose(found, 2, "macs") == ("7",)
    by_memory = choose(found, 3)
    ends = [0, *(found.calls_of(cut)[0].memory for cut in by_memory), found.calls[-1].memory]
    shares = [(end - begin) / ends[-1] for begin, end in pairwise(ends)]
    assert max(shares) < 0.45


def test_the_memory_of_a_trace_is_what_the_graph_keeps() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    found = trace(model, lambda: model(torch.ones(2, 4)), macs)
    # The input of each linear layer; the second one is what the sigmoid keeps as well.
    assert [call.memory for call in found.calls] == [32, 64, 64]
    assert [call.macs for call in found.calls] == [32, 32, 48]
    assert found.output == (2,)


def test_problems_come_all_at_once_and_cuts_in_the_order_of_the_forward() -> None:
    model = chain()
    found = trace(model, lambda: model(torch.ones(2, 4)), macs)
    assert in_order(found, ["9", "3"]) == ("3", "9")
    assert problems(found, ["3", "9"]) == []
    assert [line.split(":")[0] for line in problems(found, ["16", "3", "17"])] == ["cut '16'", "cut '17'"]
