from itertools import pairwise

import pytest
import torch
from torch import nn

from adagp import AdaGP
from adagp.advice.agreement import Sums, compare, total
from adagp.advice.attached import BP, attached
from adagp.advice.subject import Subject, build_subject
from adagp.schedules import Phase, Plan
from tests.nets import alignment, batches, build, loss_of, sgd


def subject(count: int = 4) -> Subject:
    model = build()
    return build_subject(model, sgd(model), lambda batch: loss_of(model, *batch), batches(count), lambda: 0.0)


def test_sums_are_the_plain_definitions() -> None:
    torch.manual_seed(0)
    pairs = [(torch.randn(7), torch.randn(7)) for _ in range(3)]
    sums = Sums()
    for one, two in pairs:
        sums.add(one, two)
    estimate, exact = (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
    assert sums.cosine == pytest.approx(alignment(estimate, exact).cosine, abs=1e-6)
    assert sums.error == pytest.approx(float((estimate - exact).square().sum() / exact.square().sum()), abs=1e-5)
    sums.add(None, torch.ones(7))
    assert sums.exact == pytest.approx(float(exact.square().sum()) + 7, rel=1e-5)


def test_exact_and_zero_gradients() -> None:
    with attached(subject()) as engine:
        plans = {"same": BP, "nothing": Plan(Phase.GP, "zero")}
        found = compare(engine, plans, lambda: False)
    assert found.batches == 2, "the other two are for the warm-up"
    assert total(found.plans["same"]).cosine == pytest.approx(1.0)
    assert total(found.plans["same"]).error == pytest.approx(0.0, abs=1e-6)
    assert total(found.plans["nothing"]).cosine == 0.0
    assert total(found.plans["nothing"]).error == pytest.approx(1.0)


def test_gradients_and_spread_are_those_of_autograd() -> None:
    """An oracle: gradients by autograd alone, batch by batch."""
    one = subject(3)
    layers = {"0": one.model[0], "3": one.model[3], "7": one.model[7], "9": one.model[9]}
    exact = []
    for x, y in one.batches[1:]:
        parts = [part for module in layers.values() for part in module.parameters()]
        grads = torch.autograd.grad(loss_of(one.model, x, y), parts)
        exact.append(torch.cat([grad.flatten() for grad in grads]))
    with attached(one) as engine:
        before = {key: value.clone() for key, value in one.model.state_dict().items()}
        found = compare(engine, {}, lambda: False)
        assert all(torch.equal(value, before[key]) for key, value in one.model.state_dict().items() if "running" in key)
    spread = total(found.spread)
    differences = [float((a - b).square().sum()) for a, b in pairwise(exact)]
    squares = [float(b.square().sum()) for b in exact[1:]]
    assert spread.error == pytest.approx(sum(differences) / sum(squares), rel=1e-3)


def test_added_variance_of_known_noise() -> None:
    """Noise with the variance of the mini-batch itself doubles it."""
    torch.manual_seed(0)
    one = subject(6)
    with attached(one) as engine:
        found = compare(engine, {"same": BP}, lambda: False)
    exact, own = total(found.plans["same"]), total(found.spread)
    variance = own.error * own.exact / 2 / 2
    found.plans["noisy"] = {"all": Sums(exact.exact, exact.exact + 3 * variance, exact.exact)}
    assert found.added_variance("noisy") == pytest.approx(1.0, rel=1e-6)
    with attached(subject(1)) as engine:
        assert compare(engine, {"same": BP}, lambda: False).added_variance("same") is None


def test_coarse_batches_are_taken_where_the_output_keeps_its_shape() -> None:
    pooled = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    dense = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1))
    x, y = batches(1)[0]

    def takes(model: nn.Module, closure: object) -> bool:
        with attached(build_subject(model, sgd(model), closure, None, lambda: 0.0)) as engine:
            return engine.takes(0.5)

    assert takes(pooled, lambda: loss_of(pooled, x, y))
    assert not takes(dense, lambda: dense(x).mean())
    fixed = build()
    assert not takes(fixed, lambda: loss_of(fixed, x, y)), "its Linear layer knows one size"
    linear = nn.Sequential(nn.Linear(2, 3))
    assert not takes(linear, lambda: linear(torch.ones(4, 2)).sum())
    assert takes(linear, lambda scale: linear(torch.ones(4, 2)).sum() * scale)


def test_nothing_is_left_on_the_model() -> None:
    one = subject()
    with attached(one):
        assert one.model[0]._forward_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in one.model.modules())


def test_what_a_plan_leaves_uncovered_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Embedding(500, 4), nn.Flatten(), nn.Linear(8, 3))
    tokens = (torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    with attached(build_subject(model, sgd(model), lambda batch: loss_of(model, *batch), [tokens], lambda: 0.0)):
        assert caplog.records == []
    AdaGP(model, sgd(model), lambda step: BP).remove()
    assert "trained parameters are covered" in caplog.text, "elsewhere it is"
