"""Nothing that is measured leaves a trace."""

import copy
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adagp import advise
from adagp.advice import exact
from adagp.advice.kept import unchanged
from tests.nets import batches, build, loss_of

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "adamw fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
}


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything of a model and an optimizer, as values, memory addresses and layouts."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = optimizer.state_dict()
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "grads": {name: None if one.grad is None else one.grad.clone() for name, one in model.named_parameters()},
        "memory": {name: (id(one), one.data_ptr(), one.stride(), one.requires_grad) for name, one in tensors.items()},
        "state": copy.deepcopy(state),
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "attributes": {name: sorted(module.__dict__) for name, module in model.named_modules()},
        "rng": (torch.get_rng_state(), random.getstate(), np.random.mtrand._rand.get_state()[1].tolist()),
        "threads": torch.get_num_threads(),
    }


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(one, two) and one.dtype == two.dtype
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("trained", [False, True])
def test_advising_leaves_no_trace(kind: str, trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "available_cpus", torch.get_num_threads)
    model = build()
    optimizer = OPTIMIZERS[kind](model)
    data = batches(3)
    if trained:
        loss_of(model, *data[0]).backward()
        optimizer.step()  # and the gradient stays, as where one accumulates
    model[0].eval()
    before, ticks = bits(model, optimizer), count()

    def clock() -> float:
        return next(ticks) / 1000

    advise(model, optimizer, lambda batch: loss_of(model, *batch), loader=data, seconds=0.15, clock=clock)
    after = bits(model, optimizer)
    for part, value in before.items():
        assert same(value, after[part]), part


def test_a_loader_that_shuffles_leaves_random_states_alone() -> None:
    model = build()
    x, y = zip(*batches(4), strict=True)
    data = torch.utils.data.TensorDataset(torch.cat(x), torch.cat(y))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    before, ticks = torch.get_rng_state(), count()
    advise(
        model,
        torch.optim.SGD(model.parameters()),
        lambda batch: loss_of(model, *batch),
        loader=loader,
        seconds=0.05,
        clock=lambda: next(ticks) / 1000,
    )
    assert torch.equal(before, torch.get_rng_state())


class Wandering(nn.Module):
    """Keeps things of many kinds that every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls, self.seen, self.last = 0, [0], torch.zeros(2)
        self.generator = torch.Generator().manual_seed(3)
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.last += 1
        self.total = self.total + 1
        self.extra = 1
        return self.layer(x) + torch.rand(2, generator=self.generator)  # type: ignore[no-any-return]


def test_what_a_forward_changes_is_put_back() -> None:
    model = Wandering()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    total, drawn = model.total, model.generator.get_state()
    with unchanged(model, optimizer):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 7.0
        model.layer.requires_grad_(False)
    assert (model.calls, model.seen, hasattr(model, "extra")) == (0, [0], False)
    assert model.total is total
    assert model.last.tolist() == [0, 0]
    assert torch.equal(model.generator.get_state(), drawn)
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert not optimizer.state
    assert all(part.requires_grad and part.grad is None for part in model.parameters())


def test_it_is_put_back_after_an_error() -> None:
    model = build()
    before = copy.deepcopy(model.state_dict())

    def spoil() -> None:
        with unchanged(model, torch.optim.SGD(model.parameters())), torch.no_grad():
            model[0].weight.zero_()
            raise KeyError

    with pytest.raises(KeyError):
        spoil()
    assert same(dict(before), dict(model.state_dict()))
