"""Where batches are short the network is left out, and every layer is predicted by its mean."""

import pytest
import torch
from torch import nn

from adagp import AdaGP, Phase, Plan, schedules
from adagp.predictors import GradientNetwork, TrustedPredictor

MACS = 8 * (4 * 5 + 5 * 3)  # of a forward of the model below on eight samples
PLANS = (Plan(Phase.BP, "backprop"), Plan(Phase.BP, "backprop"), Plan(Phase.GP, "predicted"))


def attach(least_macs: int) -> tuple[AdaGP, TrustedPredictor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    predictor = TrustedPredictor(GradientNetwork(lr=1e-2), least_macs=least_macs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    return AdaGP(model, optimizer, schedules.from_function(lambda step: PLANS[step % 3]), predictor), predictor


def train(gp: AdaGP, steps: int) -> None:
    for step in range(gp.step_index, gp.step_index + steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        gp.step(lambda x=x: gp.model(x).square().mean())


@pytest.mark.parametrize("is_short", [False, True])
def test_the_first_batch_decides_by_its_multiply_adds(is_short: bool) -> None:
    gp, predictor = attach(MACS // 2 + is_short)
    assert predictor.wants_macs
    train(gp, 1)
    assert not predictor.wants_macs
    assert predictor.needs.except_for == ({"0", "2"} if is_short else set())
    assert set(predictor.layers_to_train_on()) == (set() if is_short else {"0", "2"})


def test_without_a_limit_nothing_is_counted() -> None:
    gp, predictor = attach(0)
    assert not predictor.wants_macs
    train(gp, 1)
    assert predictor.needs.except_for == set()


def test_a_short_batch_is_predicted_by_trust_times_mean() -> None:
    gp, predictor = attach(MACS)
    true_grads = []
    for step in range(2):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        with gp.batch() as batch:
            batch.backward(gp.model(x).square().mean())
        true_grads.append([parameter.grad.clone() for parameter in gp.model.parameters()])
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    with gp.batch() as batch:
        batch.backward(gp.model(torch.randn(8, 4)).square().mean())
        assert not any(entry.outputs for entry in batch._layers.values())  # no hook recorded anything
    trusts = [predictor.trust(name) for name in ("0", "0", "2", "2")]
    assert min(trusts) > 0
    for parameter, trust, first, second in zip(gp.model.parameters(), trusts, *true_grads, strict=True):
        torch.testing.assert_close(parameter.grad, trust * (first + second) / 2)


def test_the_quality_of_a_mean_has_a_mape_too() -> None:
    gp, _ = attach(MACS)
    train(gp, 1 + 3 * 4)  # the eighth lesson measures it again
    assert all(0 < quality.mape != 1 for quality in gp.quality().values())


def test_a_resumed_run_is_bit_for_bit_the_same() -> None:
    whole, _ = attach(MACS)
    train(whole, 12)
    first, _ = attach(MACS)
    train(first, 5)
    second, predictor = attach(MACS)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    assert predictor.needs.except_for == {"0", "2"}
    train(second, 7)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert whole.quality() == second.quality()


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="least_macs = -1: must be at least 0"):
        TrustedPredictor(least_macs=-1)
