"""Costs of plans, against torch's own count of what a real forward and backward computed."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from adagp import AdaGP, Phase, Plan, cost, layers, models, schedules
from tests.nets import build, sgd


class Branches(nn.Module):
    """Two branches that meet: the order of registration says nothing about who needs whose error."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 5, padding=2))
        self.head = nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head((self.left(x) + self.right(x)).flatten(1))
        return y


def plain_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8, 6, 2, stride=2),
        nn.Conv2d(6, 4, 3, dilation=2, bias=False),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 7),
        nn.Linear(7, 5),
    )


def resnet14() -> nn.Module:
    return models.build("resnet14")


NETS: list[Callable[[], nn.Module]] = [plain_cnn, Branches, resnet14]
SHAPE = (2, 3, 6, 6)


def counted(model: nn.Module, plan: Plan) -> int:
    """Multiply-adds of a real batch under the real engine, optimizer and predictor not counted."""
    model = copy.deepcopy(model)
    gp = AdaGP(model, sgd(model), schedules.from_function(lambda step: plan), predictor=None)
    with FlopCounterMode(display=False) as counter, gp.batch() as batch:
        batch.backward(model(torch.randn(SHAPE)).sum())
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("source", ["zero", "skip", "random"])
def test_every_choice_of_one_layer_costs_what_torch_counts(net: Callable[[], nn.Module], source: str) -> None:
    model = net()
    costs = cost.CostModel(model, SHAPE)
    plain = Plan(Phase.BP, "backprop")
    assert costs.plan_cost(plain) == counted(model, plain)
    for layer in schedules.layer_names(model)[:6]:
        one = Plan(Phase.BP, "backprop", {layer: source})
        assert costs.plan_cost(one) == counted(model, one), layer
        rest = Plan(Phase.BP, source, {layer: "backprop"})
        assert costs.plan_cost(rest) == counted(model, rest), layer


@pytest.mark.parametrize(
    ("net", "until"), [(plain_cnn, "0"), (plain_cnn, "4"), (resnet14, "stages.0"), (resnet14, "stages.1.0.conv1")]
)
def test_a_prefix_costs_its_forward_alone(net: Callable[[], nn.Module], until: str) -> None:
    model = net()
    plan = schedules.prefix(model, until, schedules.fixed(1, 0, "zero"))(0)
    costs = cost.CostModel(model, SHAPE)
    assert costs.plan_cost(plan) == counted(model, plan)
    per_layer = costs.layers(plan)
    for name in schedules.layer_names(model):
        if plan.source(name) == "zero":
            assert per_layer[name].total == per_layer[name].forward


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2, bias=False),
        nn.Conv2d(4, 8, (3, 1), groups=4, bias=False),
        nn.Conv1d(4, 6, 3, bias=False),
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False),
        nn.Linear(9, 5, bias=False),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_forward_counts_every_product(layer: nn.Module) -> None:
    """With ones everywhere each product adds 1 to the sum of the output."""
    nn.init.ones_(layer.weight)  # type: ignore[arg-type]
    x = torch.ones(2, 4, 9) if isinstance(layer, nn.Conv1d | nn.Linear) else torch.ones(2, 4, 9, 9)
    found = cost.CostModel(layer, x.shape).layers(Plan(Phase.BP, "backprop"))[""]
    assert found.forward == int(layer(x).sum())
    assert (found.weight_gradient, found.input_gradient) == (found.forward, 0)


def test_what_sources_cost_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 36, 5))
    costs = cost.CostModel(model, SHAPE, k=4)
    weights, positions = 4 * 3 * 9, 36
    assert costs.layers(Plan(Phase.BP, "topk"))["0"].weight_gradient == 2 * 4 * weights
    assert costs.layers(Plan(Phase.BP, "topk"))["2"].weight_gradient == 2 * 144 * 5  # a single position
    assert costs.layers(Plan(Phase.BP, "backprop"))["0"].weight_gradient == 2 * positions * weights
    predicted = costs.layers(Plan(Phase.GP, "predicted"))
    assert predicted["0"].weight_gradient == 17 * (weights + 4)
    assert predicted["0"].forward == 2 * positions * weights
    assert predicted["2"].input_gradient == 0
    for source in ("mean", "last", "skip", "zero"):
        assert costs.plan_cost(Plan(Phase.GP, source)) == 0  # no forward either


def test_a_topk_layer_needs_the_error_and_what_is_before_a_resting_norm_does_not() -> None:
    model = build()
    costs = cost.CostModel(model, (8, 2, 6, 6))
    resting = {"0": "zero", "1": "skip", "3": "topk"}
    found = costs.layers(Plan(Phase.BP, "backprop", resting))
    assert found["3"].input_gradient == 0
    assert found["7"].input_gradient == found["7"].forward
    norm = costs.layers(Plan(Phase.BP, "backprop", resting | {"1": "backprop"}))
    assert norm["3"].input_gradient == norm["3"].forward


def test_relative_is_the_mean_over_batches() -> None:
    model = plain_cnn()
    costs = cost.CostModel(model, SHAPE)
    schedule = schedules.approximation("3", schedules.layer_names(model), "zero")
    exact, cheap = costs.plan_cost(schedule(0)), costs.plan_cost(schedule(3))
    assert costs.relative(schedule, range(8)) == pytest.approx((3 * exact + cheap) / (4 * exact))
    assert costs.relative(schedules.always_backprop(), range(3)) == 1


def test_tokens_of_a_shorter_context_cost_in_proportion() -> None:
    model = models.build("gpt", vocabulary=20, context=16, layers=2, width=16, heads=2)
    costs = cost.CostModel(model, (4, 16), dtype=torch.long)
    full, half = (costs.plan_cost(Plan(Phase.BP, "backprop", scale=scale)) for scale in (1.0, 0.5))
    weights = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    # The embedding is not covered, so the error passes through the first layers too.
    assert full == 4 * 16 * 3 * weights
    assert half == full // 2
    with pytest.raises(ValueError, match="coarse batches are counted for images"):
        cost.CostModel(nn.Linear(3, 4), (2, 3)).plan_cost(Plan(Phase.BP, "backprop", scale=0.5))


def test_the_model_is_left_alone() -> None:
    model = plain_cnn()
    model.eval()
    model[0].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    found = cost.CostModel(model, SHAPE).layers(Plan(Phase.BP, "backprop"))
    assert found["0"].weight_gradient == 0  # frozen
    assert found["3"].input_gradient > 0  # the norm before it trains
    assert not model.training
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * 10
    for name, value in model.state_dict().items():
        assert value.device.type == "cpu"
        assert torch.equal(value, before[name])


def test_a_shape_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"input_shape=\(2, 5, 6, 6\).*channel dimensions"):
        cost.CostModel(plain_cnn(), (2, 5, 6, 6))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, 0]


def test_a_registered_layer_without_a_product_costs_what_its_source_costs() -> None:
    layers.register(Scale)(type(layers.kind_of(nn.Linear(2, 2))))
    try:
        costs = cost.CostModel(nn.Sequential(nn.Linear(3, 4), Scale()), (2, 3))
        assert costs.layers(Plan(Phase.BP, "backprop"))["1"].total == 0
        assert costs.layers(Plan(Phase.BP, "topk"))["1"].total == 0
        assert costs.layers(Plan(Phase.GP, "predicted"))["1"].weight_gradient == 17 * 4
    finally:
        layers.unregister(Scale)
