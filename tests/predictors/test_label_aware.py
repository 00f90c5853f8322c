"""The label-aware predictor against gradients that it can know exactly, and against a plain least-squares solver."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, data, schedules
from adagp.layers import Layer, Rows
from adagp.layers.coverage import find_layers
from adagp.predictors import Features, LabelAwarePredictor, TrainingExample
from adagp.predictors.label_aware import _Shape
from adagp.training import Recipe, Run
from tests.nets import batches, build, equal_parameters, loss_of, sgd
from tests.ranks import on_ranks


def layer_of(module: nn.Module) -> Layer:
    (layer,), _ = find_layers(nn.Sequential(module), list(module.parameters()))
    return layer


MODULES = [
    nn.Linear(6, 4),
    nn.Conv2d(6, 4, 3),
    nn.Conv2d(6, 4, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    nn.Conv2d(6, 4, (1, 3), groups=2, bias=False),
    nn.Conv2d(6, 6, 3, groups=6),
    nn.Conv1d(6, 4, 3),
    nn.ConvTranspose2d(6, 4, 3, groups=2),
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_rows_are_split_by_input_and_joined_again(module: nn.Module) -> None:
    layer = layer_of(module)
    shape = _Shape.of(layer)
    assert shape is not None
    rows = layer.kind.rows(layer.module, torch.randn_like(layer.weight))
    assert torch.equal(shape.join(shape.split(rows)), rows)
    # One input channel at a time: its entries, and no others, stand in its column.
    for channel in range(shape.groups * shape.inputs):
        weight = torch.zeros_like(layer.weight)
        axis = 0 if isinstance(module, nn.ConvTranspose2d) else 1
        group, column = divmod(channel, shape.inputs)
        if axis == 0:
            weight[channel] = 1
        else:
            weight[group * shape.units : (group + 1) * shape.units, column] = 1
        parts = shape.split(layer.kind.rows(layer.module, weight))
        assert bool(parts[group, :, column].eq(1).all())
        assert parts.sum() == parts[group, :, column].sum()


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_the_fit_is_that_of_weighted_least_squares(module: nn.Module) -> None:
    layer = layer_of(module)
    shape = _Shape.of(layer)
    assert shape is not None
    predictor = LabelAwarePredictor(decay=0.8, ridge=1e-6, exact_head=False)
    predictor.attach([layer])
    torch.manual_seed(0)
    outputs = 2
    seen = [torch.randn(outputs, shape.groups * shape.inputs) for _ in range(6)]
    trues = [torch.randn(layer.out, layer.fan_in) for _ in seen]
    for weighted, true in zip(seen, trues, strict=True):
        features = Features(loss_grad=weighted.sum(1), weighted_input=weighted)
        predictor.learn([TrainingExample(layer, features, _rows(layer, true), (1.0, 1.0))])
    last = torch.randn(outputs, shape.groups * shape.inputs)
    found = predictor._rows(layer, Features(loss_grad=torch.ones(outputs), weighted_input=last))
    assert found is not None
    for group in range(shape.groups):
        own = slice(group * shape.inputs, (group + 1) * shape.inputs)
        weights = [0.8 ** ((len(seen) - 1 - age) / 2) for age in range(len(seen))]
        left = torch.cat([weight * one[:, own] for weight, one in zip(weights, seen, strict=True)], 1).t()
        right = torch.cat([weight * shape.split(true)[group] for weight, true in zip(weights, trues, strict=True)], 1)
        feedback = torch.linalg.lstsq(left.double(), right.t().double()).solution.t()
        wanted = (feedback @ last[:, own].double()).float()
        torch.testing.assert_close(shape.split(found.weight)[group], wanted, rtol=1e-3, atol=1e-3)


def _rows(layer: Layer, weight: Tensor) -> Any:
    return Rows(weight, None if layer.bias is None else torch.randn(layer.out, 1))


def test_a_linear_network_is_predicted_exactly() -> None:
    """In a chain of linear layers `grad_output` is a matrix times the gradient at the output, so only weights move."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.0), schedules.fixed(3, 1), "label-aware")
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(32, 6, generator=generator), torch.randint(3, (32,), generator=generator)
        is_gp = gp.phase.value == "GP"
        with gp.batch() as batch:
            batch.backward(nn.functional.cross_entropy(model(x), y))
        if is_gp and seed > 6:
            found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            gp.optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            for one, parameter in zip(found, model.parameters(), strict=True):
                assert parameter.grad is not None
                assert nn.functional.cosine_similarity(one.flatten(), parameter.grad.flatten(), 0) > 0.99
        gp.optimizer.zero_grad()


@pytest.mark.parametrize("exact_head", [True, False])
def test_the_last_layer_is_exact_where_asked(exact_head: bool) -> None:
    model = build()
    predictor = LabelAwarePredictor(exact_head=exact_head)
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), predictor)
    work = batches(6)
    for x, y in work[:5]:
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    if gp.phase.value != "GP":
        gp.step(lambda: loss_of(model, *work[4]))
    assert predictor.trust("9") == 1.0 or not exact_head
    x, y = work[5]
    twin = copy.deepcopy(model)
    with gp.batch() as batch:
        batch.backward(loss_of(model, x, y))
    loss_of(twin, x, y).backward()
    agrees = torch.allclose(model[9].weight.grad, twin[9].weight.grad, atol=1e-6)  # type: ignore[arg-type]
    assert agrees is exact_head


def _last_layer_in_gp(rank: int, count: int, how: str) -> tuple[Tensor, Tensor]:
    """The gradient that a GP batch gave the exact last layer, and the true one of this rank's samples."""
    torch.compiler.reset()
    model = build().eval()  # batch norm as it is, so that parts of a batch are parts
    forward: Any = model
    if how == "ranks":
        forward = nn.parallel.DistributedDataParallel(model)
    gp = AdaGP(forward, sgd(model), schedules.fixed(1, 1), "label-aware")
    if how == "compile":
        forward = torch.compile(model, backend="aot_eager")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if how == "scaler" else None
    parts = 2 if how == "micro-batches" else 1

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "scaler"):
            return loss_of(forward, x, y) / parts

    *work, (x, y) = batches(7, seed=rank)
    for inputs, labels in work:
        gp.step(lambda x=inputs, y=labels: loss(x, y) * parts, scaler)
    assert gp.phase.value == "GP"
    twin = copy.deepcopy(model)
    loss_of(twin, x, y).backward()
    with gp.batch(scaler) as batch:
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            batch.backward(loss(a, b))
    found, true = model[9].weight.grad, twin[9].weight.grad
    assert found is not None
    assert true is not None
    return found, true


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("how", "tolerance"), [("micro-batches", 1e-6), ("scaler", 2e-3), ("compile", 1e-6)])
def test_the_exact_last_layer_in_every_loop(how: str, tolerance: float) -> None:
    found, true = _last_layer_in_gp(0, 1, how)
    assert float(true.abs().max()) > 10 * tolerance
    torch.testing.assert_close(found, true, rtol=0, atol=tolerance)


def test_the_exact_last_layer_of_all_ranks() -> None:
    (found, one), (other, two) = on_ranks(2, _last_layer_in_gp, "ranks")
    assert torch.equal(found, other)
    torch.testing.assert_close(found, (one + two) / 2, rtol=0, atol=1e-6)


def test_many_outputs_are_projected() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 100))
    predictor = LabelAwarePredictor(features=8)
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), predictor)
    x, y = torch.randn(32, 6), torch.randint(100, (32,))
    for _ in range(12):
        gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    assert predictor.state_dict()["feedback"]["0"]["inputs"].shape == (1, 8, 8)
    assert gp.quality()["0"].cosine > 0.5


@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_run_is_bit_for_bit_the_same(stop: int) -> None:
    def attached(seed: int = 0) -> tuple[nn.Module, AdaGP]:
        model = build(seed)
        return model, AdaGP(model, sgd(model), schedules.fixed(2, 1), "label-aware")

    work = batches(9)
    whole, gp = attached()
    first, before = attached()
    for x, y in work:
        gp.step(lambda x=x, y=y: loss_of(whole, x, y))
    for x, y in work[:stop]:
        before.step(lambda x=x, y=y: loss_of(first, x, y))
    second, after = attached(7)
    second.load_state_dict(first.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.load_state_dict(before.state_dict())
    for x, y in work[stop:]:
        after.step(lambda x=x, y=y: loss_of(second, x, y))
    assert equal_parameters(whole, second)


def test_a_recipe_can_name_it_and_resumes() -> None:
    recipe = Recipe(model="cnn", data="digits", predictor="label-aware", batch_size=32, train_limit=480, epochs=1)
    digits = data.load("digits")
    run, again = Run(recipe, digits), Run(recipe, digits)
    for _ in range(8):
        run.step()
    again.load_state_dict(run.state_dict())
    broken = run.state_dict()
    first = next(iter(broken["gp"]["predictor"]["feedback"].values()))
    first["inputs"] = torch.zeros(1, 2, 2)
    with pytest.raises(Exception, match="does not fit"):
        Run(recipe, digits).load_state_dict(broken)


@pytest.mark.parametrize("wrong", [{"features": 0}, {"decay": 1.5}, {"ridge": 0.0}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LabelAwarePredictor(**wrong)
