"""A plan is resolved once for the same layers, and again when they change."""

import torch
from torch import nn

from adagp import AdaGP, Phase, Plan, schedules


def test_equal_plans_are_resolved_once_until_a_layer_is_frozen() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gp = AdaGP(model, optimizer, schedules.from_function(lambda step: Plan(Phase.BP, "backprop")), predictor=None)

    def resolved() -> object:
        with gp.batch() as batch:
            batch.backward(model(torch.ones(3, 2)).square().mean())
        optimizer.zero_grad()
        return batch.resolved

    first = resolved()
    assert resolved() is first
    model[0].requires_grad_(False)
    frozen = resolved()
    assert list(frozen.tasks) == ["1"]
    model[0].requires_grad_(True)
    assert resolved() is first
