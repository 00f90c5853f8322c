"""Small models: running means alone, without the predictor's network."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adagp import AdaGP, Phase, Plan, schedules
from adagp._engine.supply import is_always_finite
from adagp.layers.coverage import find_layers
from adagp.layers.rows import Rows
from adagp.predictors import Features, GradientNetwork, TrainingExample, TrustedPredictor
from adagp.predictors.means import MeansAlone
from tests.nets import alignment, batches, build, equal_parameters, loss_of, sgd
from tests.ranks import on_ranks

PLANS = {"BP": Plan(Phase.BP, "backprop"), "GP": Plan(Phase.GP, "predicted")}


def attached(model: nn.Module, order: tuple[str, ...] = ("BP", "BP", "GP"), predictor: Any = "trusted") -> AdaGP:
    schedule = schedules.from_function(lambda step: PLANS[order[step % len(order)]], ["backprop", "predicted"])
    return AdaGP(model, sgd(model), schedule, predictor)


def train(gp: AdaGP, steps: range) -> AdaGP:
    given = batches(steps.stop)
    for step in steps:
        x, y = given[step % 3]  # again and again, so that gradients agree and are trusted
        gp.step(lambda x=x, y=y: loss_of(gp.model, x, y))
    return gp


def mean_of(gp: AdaGP, layer: str) -> Rows:
    assert isinstance(gp.predictor, TrustedPredictor)
    mean = gp.predictor._means.get(layer)
    assert mean is not None
    return mean


@pytest.mark.parametrize(("fewest", "is_small"), [(12, False), (13, True), (0, False)])
def test_a_model_with_fewer_weights_is_small(fewest: int, is_small: bool) -> None:
    model = nn.Linear(4, 3)
    predictor = TrustedPredictor(fewest_weights=fewest)
    predictor.attach(find_layers(model, model.parameters())[0])
    assert isinstance(predictor._means, MeansAlone) is is_small
    assert bool(predictor.layers_to_train_on()) is not is_small
    assert (predictor.needs.output is None) is is_small


@pytest.mark.parametrize(("fan_in", "out", "is_small"), [(271, 369, True), (250, 400, False)])
def test_the_default_threshold_from_both_sides(fan_in: int, out: int, is_small: bool) -> None:
    model = nn.Linear(fan_in, out)  # 99,999 and 100,000 weights
    gp = attached(model)
    assert ("running means alone" in gp.coverage().note) is is_small
    assert isinstance(gp.predictor, TrustedPredictor)
    assert isinstance(gp.predictor._means, MeansAlone) is is_small


def test_a_given_network_is_used_in_a_model_of_any_size() -> None:
    gp = attached(build(), predictor=TrustedPredictor(GradientNetwork(samples=4)))
    assert isinstance(gp.predictor, TrustedPredictor)
    assert gp.predictor.layers_to_train_on()
    assert gp.coverage().note == ""


def test_coverage_says_that_the_network_is_left_out_and_why() -> None:
    text = str(attached(build()).coverage())
    assert "running means alone: the covered layers have 420 weights, fewer than 100,000" in text
    assert "fewest_weights=0" in text


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="fewest_weights = -1"):
        TrustedPredictor(fewest_weights=-1)


def test_predictions_are_the_running_means_times_trust() -> None:
    model = build()
    gp = attached(model, ("BP",))
    means: dict[str, Tensor] = {}
    given = batches(9)
    for step in range(9):
        x, y = given[step % 2]
        twin = copy.deepcopy(model)
        loss_of(twin, x, y).backward()
        for name, parameter in twin.named_parameters():
            assert parameter.grad is not None
            kept = means.setdefault(name, torch.zeros_like(parameter))
            kept += max(0.1, 1 / (step + 1)) * (parameter.grad - kept)
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    assert isinstance(gp.predictor, TrustedPredictor)
    gp._planner.next_plan = lambda: PLANS["GP"]  # type: ignore[method-assign]
    trusted = [layer for layer in gp._setup.layers if gp.predictor.trust(layer.name) > 0]
    assert trusted
    with gp.batch() as batch:
        batch.backward(loss_of(model, *given[0]))
    for layer in trusted:
        trust = gp.predictor.trust(layer.name)
        assert layer.weight.grad is not None
        torch.testing.assert_close(layer.weight.grad, trust * means[f"{layer.name}.weight"], atol=1e-6, rtol=1e-4)
        if layer.bias is not None:
            assert layer.bias.grad is not None
            torch.testing.assert_close(layer.bias.grad, trust * means[f"{layer.name}.bias"], atol=1e-6, rtol=1e-4)


def test_clipping_a_prediction_does_not_reach_the_mean() -> None:
    model = build()
    gp = train(attached(model, ("BP",)), range(6))
    gp._planner.next_plan = lambda: PLANS["GP"]  # type: ignore[method-assign]
    kept = mean_of(gp, "9").clone()
    with gp.batch() as batch:
        batch.backward(loss_of(model, *batches(1)[0]))
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    assert torch.equal(mean_of(gp, "9").weight, kept.weight)


def test_the_reported_alignment_is_that_of_the_mean_written_out() -> None:
    model = nn.ModuleList([nn.Linear(20, 24), nn.Linear(5, 7, bias=False)])
    layers, _ = find_layers(model, model.parameters())
    predictor, draw = TrustedPredictor(), torch.Generator().manual_seed(0)
    predictor.attach(layers)
    for step in range(10):
        examples = []
        for layer in layers:
            bias = None if layer.bias is None else torch.randn(layer.out, 1, generator=draw)
            true = Rows(torch.randn(layer.out, layer.fan_in, generator=draw), bias)
            squares = tuple(float(block.square().sum()) for block in true.blocks())
            examples.append(TrainingExample(layer, None, true, squares))
        means = {layer.name: predictor._means.get(layer.name) for layer in layers}
        means = {name: None if mean is None else mean.clone() for name, mean in means.items()}
        found = predictor.learn(examples)
        assert found.keys() == {"0", "1"}
        for example in examples:
            mean, one = means[example.layer.name], found[example.layer.name]
            if mean is None:
                assert (one.cosine, one.norm_ratio, one.mape) == (0, 0, 1)
                continue
            guess, true = (torch.cat([part.flatten() for part in rows.blocks()]) for rows in (mean, example.true_grad))
            expected = alignment(guess, true)
            assert one.cosine == pytest.approx(expected.cosine, abs=1e-5), step
            assert one.norm_ratio == pytest.approx(expected.norm_ratio, rel=1e-5)
            assert one.mse == pytest.approx(expected.mse, rel=1e-4)
            if step in (1, 9):  # it is taken anew in every eighth example only
                pick = slice(None, None, -(-example.layer.out // 8))
                sampled = alignment(mean.weight[pick], example.true_grad.weight[pick])
                assert one.mape == pytest.approx(sampled.mape, rel=1e-3)


def test_a_run_resumes_bit_for_bit() -> None:
    whole = train(attached(build()), range(24))
    model = build()
    first = train(attached(model), range(14))
    saved = copy.deepcopy((model.state_dict(), first.optimizer.state_dict(), first.state_dict()))
    model = build(seed=1)
    model.load_state_dict(saved[0])
    again = attached(model)
    again.optimizer.load_state_dict(saved[1])
    again.load_state_dict(saved[2])
    train(again, range(14, 24))
    assert equal_parameters(whole.model, model)
    assert again.quality() == whole.quality()
    assert whole.counts()["predicted"] > 8


@pytest.mark.parametrize(("saved", "here"), [(0, 100_000), (100_000, 0)])
def test_a_state_of_the_other_kind_is_refused(saved: int, here: int) -> None:
    one, other = (attached(build(), predictor=TrustedPredictor(fewest_weights=fewest)) for fewest in (saved, here))
    with pytest.raises(ValueError, match="build it with the same fewest_weights"):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize("last", [True, False])
def test_the_micro_batches_of_a_gp_batch_apply_the_mean_once(last: bool) -> None:
    models = [build(), build()]
    for model, parts in zip(models, (1, 3), strict=True):
        gp = train(attached(model, ("BP",) * 8 + ("GP",)), range(8))
        x, y = batches(1)[0]
        if last or parts == 1:
            with gp.batch() as batch:
                for _ in range(parts):
                    batch.backward(loss_of(model, x, y) / parts)
            batch.step()
        else:
            for part in range(parts):
                gp.step(lambda: loss_of(model, x, y) / 3, last=part == 2)  # noqa: B023
        assert gp.counts()["predicted"] > 0
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, two)


def test_half_precision_predicts_in_single() -> None:
    model = build()
    gp, scaler = attached(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(12):
        x, y = batches(3)[step % 3]

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss_of(model, x, y)

        gp.step(closure, scaler)
    assert gp.counts()["predicted"] > 0
    assert mean_of(gp, "9").weight.dtype == torch.float32
    assert float(mean_of(gp, "9").weight.abs().max()) < 100  # not in the scale of the loss
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


class _Doubling(TrustedPredictor):
    def predict(self, requests: Any) -> Any:
        return (
            None if rows is None else Rows(rows.weight * float("inf"), rows.bias) for rows in super().predict(requests)
        )


def test_predictions_are_not_checked_unless_a_subclass_makes_them() -> None:
    gp = attached(build())
    layer = gp._setup.by_name["9"]
    assert is_always_finite(gp.sources["predicted"], layer)
    with_network = attached(build(), predictor=TrustedPredictor(fewest_weights=0, most_rows=7))
    found = {one.name: is_always_finite(with_network.sources["predicted"], one) for one in with_network._setup.layers}
    assert found == {"0": False, "3": False, "7": True, "9": False}, "of the large layer alone"
    own = attached(build(), predictor=_Doubling())
    assert not is_always_finite(own.sources["predicted"], layer)
    train(own, range(9))
    assert own.counts()["fallback"] > 0


class _Count(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def operations(work: Any) -> int:
    with _Count() as count:
        work()
    return count.operations


def test_a_gp_batch_adds_few_operations_to_a_forward_and_no_sample_of_an_output() -> None:
    model = build()
    gp = train(attached(model, ("BP",)), range(12))
    gp._planner.next_plan = lambda: PLANS["GP"]  # type: ignore[method-assign]
    x, y = batches(1)[0]
    with torch.no_grad():
        forward = operations(lambda: loss_of(model, x, y))

    def gradients() -> None:
        with gp.batch() as batch:
            batch.backward(loss_of(model, x, y))

    assert operations(gradients) - forward <= 3 * len(gp._setup.layers) + 2, "of a model without channels-last weights"


def test_a_bp_batch_adds_few_operations_to_a_plain_one() -> None:
    model = build()
    gp = train(attached(model, ("BP",)), range(12))
    x, y = batches(1)[0]

    def plain() -> None:
        loss_of(model, x, y).backward()
        gp.optimizer.step()
        gp.optimizer.zero_grad()

    plain()
    assert (
        operations(lambda: gp.step(lambda: loss_of(model, x, y))) - operations(plain) <= 6 * len(gp._setup.layers) + 20
    )


def _on_rank(rank: int, count: int) -> list[Tensor]:
    model = build()
    wrapped = nn.parallel.DistributedDataParallel(model)
    gp = AdaGP(wrapped, sgd(model), schedules.fixed(1, 2))
    x, y = batches(count, seed=3)[rank]
    for _ in range(18):
        gp.step(lambda: loss_of(wrapped, x, y))
    assert gp.counts()["predicted"] > 4
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_ranks_stay_equal() -> None:
    first, second = on_ranks(2, _on_rank)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_a_layer_that_is_asked_before_its_first_gradient_gives_nothing() -> None:
    module = nn.Linear(4, 3)
    layers, _ = find_layers(module, module.parameters())
    means = MeansAlone(0.9)
    means.attach(layers, list)
    assert means.scaled([(layers[0], Features())], [1.0]) == [None]
