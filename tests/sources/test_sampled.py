"""`sampled` through the engine: unbiased where it serves, exact elsewhere, resumed bit for bit."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adagp import AdaGP, Phase, Plan, schedules
from adagp.sources import Sampled
from tests.nets import batches, build, loss_of, sgd
from tests.sources.test_sources import attach, convolutions, gradients, plain, under_plan


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@settings(max_examples=15, deadline=None)
@given(convolutions())
def test_a_rate_of_one_is_the_exact_gradient_through_the_engine(case: tuple[nn.Conv2d, Tensor]) -> None:
    middle, x = case
    model = nn.Sequential(nn.Conv2d(middle.in_channels, middle.in_channels, 1), middle, nn.ReLU(inplace=True))

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        return (out * torch.arange(out.numel()).view(out.shape).cos()).sum()

    true = plain(model, loss)
    for layer in ("0", "1"):
        found = under_plan(attach(copy.deepcopy(model), {layer: "sampled"}, sampled=Sampled(rate=1)), loss)
        assert found.keys() == true.keys()
        for name, gradient in true.items():
            assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-4), (layer, name)


NETS = {
    "convolution": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (8, 4, 9, 9)),
    "padded by its edge": (nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), (6, 4, 7, 7)),
    "one dimension": (nn.Conv1d(4, 6, 3, padding=2, dilation=2), (8, 4, 20)),
    "no batch": (nn.Conv2d(4, 6, 3), (4, 9, 9)),
    "one pixel": (nn.Conv2d(4, 6, 1, stride=2), (8, 4, 9, 9)),
    "one pixel of a line": (nn.Conv1d(4, 6, 1, stride=2), (4, 21)),
    "tokens": (nn.Linear(12, 6), (8, 20, 12)),
    "rows": (nn.Linear(12, 6), (40, 12)),
    "one row": (nn.Linear(12, 6), (12,)),
    "no bias": (nn.Linear(12, 6, bias=False), (4, 5, 6, 12)),
}


class Beside(nn.Sequential):
    """The second layer, beside one that is never called and could keep rows."""

    def forward(self, x: Tensor) -> Tensor:
        return self[1](x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("keep", ["input", "rows"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("net", NETS)
def test_the_mean_of_many_batches_is_the_exact_gradient_and_the_rest_is_exact(
    net: str, channels_last: bool, keep: str
) -> None:
    torch.manual_seed(0)
    layer, shape = copy.deepcopy(NETS[net])
    x = torch.randn(shape) + 0.5
    if channels_last and x.dim() == 4 and isinstance(layer, nn.Conv2d):
        layer, x = layer.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    model = Beside(nn.Linear(2, 2), layer)
    target = torch.randn_like(model(x))

    def loss(net: nn.Module) -> Tensor:
        return (net(x) - target).pow(2).sum()

    true = plain(model, loss)
    (grad_input,) = torch.autograd.grad(loss(model), x)
    x.grad = None
    gp = attach(model, {"1": "sampled"}, sampled=Sampled(rate=0.3, keep=keep, seed=3))
    found, count = [], 100
    for _ in range(count):
        given_now = under_plan(gp, loss)
        found.append(given_now["1.weight"])
        assert x.grad is not None
        assert torch.equal(x.grad, grad_input)
        x.grad = None
        if layer.bias is not None:
            assert torch.allclose(given_now["1.bias"], true["1.bias"], rtol=1e-4, atol=1e-4)
        gp.optimizer.zero_grad()
    draws = torch.stack(found).double()
    bound = 5 * draws.std(0) / count**0.5 + 2e-3 * float(true["1.weight"].abs().max())
    assert bool(((draws.mean(0) - true["1.weight"]).abs() <= bound).all())
    shares = (draws * true["1.weight"]).flatten(1).sum(1) / true["1.weight"].square().sum()  # of the exact gradient
    error = float(shares.std()) / count**0.5
    assert error < 0.05, "so that a factor would be seen"
    assert float(shares.mean()) == pytest.approx(1, abs=5 * error + 1e-3)
    assert found[0].stride() == true["1.weight"].stride()
    assert len({float(one.sum()) for one in found[:20]}) > (1 if net != "one row" else 0)


class Held:
    """The bytes that autograd saves for a backward."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor


@pytest.mark.parametrize("first", [nn.Linear(32, 32), nn.Conv2d(32, 32, 1)])
def test_rows_take_a_share_of_the_memory_of_the_input(first: nn.Module) -> None:
    is_linear = isinstance(first, nn.Linear)
    x = torch.randn(8, 64, 32) if is_linear else torch.randn(8, 32, 8, 8)
    held = {}
    for keep in ("input", "rows"):
        model = nn.Sequential(copy.deepcopy(first), nn.Flatten(), nn.Linear(2048, 2))
        gp = attach(model, {"0": "sampled"}, sampled=Sampled(rate=0.25, keep=keep))
        seen = Held()
        with gp.batch() as batch:
            with torch.autograd.graph.saved_tensors_hooks(seen.pack, lambda tensor: tensor):
                loss = model(x * 1).square().mean()
            batch.backward(loss)
        held[keep] = sum(seen.storages.values())
    left = held["input"] - x.nbytes
    assert held["rows"] - left < 0.35 * x.nbytes


def test_a_model_none_of_whose_layers_could_keep_rows_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 1, padding="same", groups=3))
    with pytest.raises(ValueError, match=r"keep = 'rows': no covered layer is Linear or a 1 x 1 conv.*keep='input'"):
        attach(model, {"0": "sampled"}, sampled=Sampled(keep="rows"))
    model.append(nn.Conv2d(3, 3, 1, padding="valid"))
    attach(model, {"2": "sampled"}, sampled=Sampled(keep="rows"))


class Branches(nn.Module):
    """Two layers with the same input, or with what looks like it."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        left = self.left(x)
        return left + self.right(self.between(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("between", "rates", "shares"),
    [
        (lambda x: x, {}, True),
        (lambda x: x.clone(), {}, False),
        (lambda x: x.detach().add_(0.0), {}, False),
        (lambda x: x, {"right": 0.4}, False),
    ],
)
def test_layers_with_the_same_input_share_its_rows(
    between: Callable[[Tensor], Tensor], rates: dict[str, float], shares: bool
) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(40, 6), Branches(between)
    sampled = Sampled(rate=0.3, rates=rates, keep="rows")
    gp = attach(model, {"left": "sampled", "right": "sampled"}, sampled=sampled)
    first = under_plan(gp, lambda net: net(x).sin().sum())
    assert torch.equal(first["left.weight"], first["right.weight"]) == shares  # their grad_output is the same
    gp.optimizer.zero_grad()
    again = under_plan(gp, lambda net: net(x).sin().sum())
    assert not torch.equal(first["left.weight"], again["left.weight"])


def test_a_resumed_run_draws_the_same_rows() -> None:
    overrides, data = dict.fromkeys(("0", "7", "9"), "sampled"), batches(6)
    whole, first, second = build(), build(), build(seed=1)
    run(attach(whole, overrides, sampled=Sampled(keep="rows")), whole, data)
    gp = attach(first, overrides, sampled=Sampled(keep="rows"))
    run(gp, first, data[:4])
    second.load_state_dict(first.state_dict())
    resumed = attach(second, overrides, sampled=Sampled(keep="rows"))
    resumed.optimizer.load_state_dict(gp.optimizer.state_dict())
    resumed.load_state_dict(gp.state_dict())
    run(resumed, second, data[4:])
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_the_users_random_numbers_are_left_alone() -> None:
    (x, y), *_ = batches(1)
    model = build()
    before = torch.get_rng_state()
    under_plan(attach(model, {"0": "sampled"}), lambda net: loss_of(net, x, y))
    assert torch.equal(torch.get_rng_state(), before)


def test_rates_come_from_the_plan_then_by_layer_then_for_all() -> None:
    model = build()
    (x, y), *_ = batches(1)
    true = plain(model, lambda net: loss_of(net, x, y))
    plan = Plan(Phase.BP, "backprop", dict.fromkeys(("0", "3", "7"), "sampled"), rates={"7": 1.0})
    source = Sampled(rate=0.3, rates={"3": 1.0, "7": 0.2})
    schedule = schedules.from_function(lambda step: plan, ["backprop", "sampled"])
    found = under_plan(
        AdaGP(model, sgd(model), schedule, None, sources={"sampled": source}), lambda net: loss_of(net, x, y)
    )
    assert [source.rate(layer) for layer in ("0", "3", "7")] == [0.3, 1.0, 1.0]
    assert torch.allclose(found["3.weight"], true["3.weight"], atol=1e-6)
    assert torch.allclose(found["7.weight"], true["7.weight"], atol=1e-6)
    assert not torch.allclose(found["0.weight"], true["0.weight"], atol=1e-6)


def run(gp: AdaGP, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        gp.step(lambda x=x, y=y: loss_of(model, x, y))  # type: ignore[misc]


def test_a_resumed_run_draws_what_the_other_would_have_drawn() -> None:
    overrides = dict.fromkeys(("0", "3", "7"), "sampled")
    data = batches(8)
    whole, first = build(), build()
    run(attach(whole, overrides), whole, data)
    gp = attach(first, overrides)
    run(gp, first, data[:5])
    second = build(seed=1)
    second.load_state_dict(first.state_dict())
    resumed = attach(second, overrides)
    resumed.optimizer.load_state_dict(gp.optimizer.state_dict())
    resumed.load_state_dict(gp.state_dict())
    run(resumed, second, data[5:])
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
    other = build()
    run(attach(other, overrides, sampled=Sampled(seed=1)), other, data)
    assert not torch.equal(whole[0].weight, other[0].weight)


def test_a_state_with_other_rates_is_refused() -> None:
    model = build()
    state = attach(model, {"0": "sampled"}, sampled=Sampled(rates={"0": 0.5})).state_dict()
    with pytest.raises(ValueError, match=re.escape("sampled(rate=0.25, 0: 0.5, seed=0)")):
        attach(model, {"0": "sampled"}).load_state_dict(state)


@pytest.mark.parametrize(("keep", "layer"), [("input", "0"), ("rows", "7")])
def test_micro_batches_add_up(keep: str, layer: str) -> None:
    (x, y), *_ = batches(1)
    model = build()
    model[1].eval()  # batch statistics would tell whole and halves apart
    true = plain(model, lambda net: nn.functional.cross_entropy(net(x), y, reduction="sum"))
    gp = attach(model, {layer: "sampled", "3": "sampled"}, sampled=Sampled(rate=0.6, keep=keep))
    found = []
    for _ in range(120):
        with gp.batch() as batch:
            for part in (slice(4), slice(4, 8)):
                batch.backward(nn.functional.cross_entropy(model(x[part]), y[part], reduction="sum"))
        found.append(gradients(model)[f"{layer}.weight"])
        gp.optimizer.zero_grad()
    draws = torch.stack(found)
    assert len({float(one.sum()) for one in found[:20]}) > 1
    assert bool(((draws.mean(0) - true[f"{layer}.weight"]).abs() <= 5 * draws.std(0) / 120**0.5 + 1e-3).all())


@pytest.mark.parametrize(("keep", "layer"), [("input", "3"), ("rows", "7")])
def test_a_scaler_unscales_what_was_sampled_and_skips_what_overflows(keep: str, layer: str) -> None:
    (x, y), *_ = batches(1)
    model = build()
    alone = attach(copy.deepcopy(model), {layer: "sampled"}, sampled=Sampled(keep=keep))
    expected = under_plan(alone, lambda net: loss_of(net, x, y))
    gp = attach(model, {layer: "sampled"}, sampled=Sampled(keep=keep))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gp.batch(scaler=scaler) as batch:
        batch.backward(loss_of(model, x, y))
    assert all(torch.allclose(gradient, expected[name], atol=1e-6) for name, gradient in gradients(model).items())
    batch.step()
    gp.optimizer.zero_grad()
    before = copy.deepcopy(model.state_dict())
    gp.step(lambda: loss_of(model, x, y) * 1e38, scaler=scaler)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items() if "weight" in name)
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("keep", ["input", "rows"])
def test_autocast_gives_gradients_in_the_weights_type(keep: str) -> None:
    (x, y), *_ = batches(1)
    model = build()
    gp = attach(model, {"0": "sampled", "7": "sampled"}, sampled=Sampled(rate=0.99, keep=keep))
    true = plain(model, lambda net: loss_of(net, x, y))
    with gp.batch() as batch:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        batch.backward(loss)
    for name in ("0.weight", "7.weight"):
        found = gradients(model)[name]
        assert found.dtype == torch.float32
        assert nn.functional.cosine_similarity(found.flatten(), true[name].flatten(), dim=0) > 0.9


@pytest.mark.parametrize("keep", ["input", "rows"])
def test_checkpointed_layers_are_served(keep: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    x = torch.randn(30, 6)

    def loss(net: nn.Module) -> Tensor:
        hidden: Tensor = checkpoint(lambda x: net[1](net[0](x)), x, use_reentrant=False)
        return net[2](hidden).square().mean()  # type: ignore[no-any-return]

    true = plain(model, loss)
    gp = attach(model, {"0": "sampled"}, sampled=Sampled(rate=0.5, keep=keep))
    found = []
    for _ in range(120):
        given_now = under_plan(gp, loss)
        assert all(torch.allclose(given_now[name], true[name], atol=1e-6) for name in true if name != "0.weight")
        found.append(given_now["0.weight"])
        gp.optimizer.zero_grad()
    draws = torch.stack(found)
    assert bool(((draws.mean(0) - true["0.weight"]).abs() <= 5 * draws.std(0) / 120**0.5 + 1e-4).all())


@pytest.mark.parametrize(
    ("rates", "message"),
    [({"rate": 0}, "rate = 0"), ({"rate": 2}, "rate = 2"), ({"rates": {"3": -1}}, r"rates\['3'\] = -1")],
)
def test_rates_that_are_no_shares_are_refused(rates: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}: it is the share of positions"):
        Sampled(**rates)  # type: ignore[arg-type]


def test_what_is_kept_is_the_input_or_rows() -> None:
    with pytest.raises(ValueError, match="keep = 'all': it is 'input' or 'rows'"):
        Sampled(keep="all")


def test_a_plan_with_a_rate_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rates\['a'\] = 0: it is a share of positions, above 0"):
        Plan(Phase.BP, "backprop", {"a": "sampled"}, rates={"a": 0})


def test_rates_of_layers_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rates of sampled name \['nothing'\], .* those are: 0, 3, 7, 9"):
        attach(build(), {"0": "sampled"}, sampled=Sampled(rates={"nothing": 0.5}))


def test_layers_that_cannot_be_served_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Conv3d(2, 3, 3), nn.ConvTranspose2d(2, 2, 2))
    for layer, kind in (("0", "Conv3d"), ("1", "ConvTranspose2d")):
        with pytest.raises(ValueError, match=f"layer '{layer}' is {kind}: give it another source"):
            attach(model, {layer: "sampled"}).batch()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it where the graph breaks
@pytest.mark.parametrize("keep", ["input", "rows"])
def test_a_compiled_model_gets_the_same_gradients(keep: str) -> None:
    (x, y), *_ = batches(1)
    plain_model, compiled_model = build(), build()
    overrides = {"0": "sampled", "7": "sampled"}
    expected = under_plan(attach(plain_model, overrides, sampled=Sampled(keep=keep)), lambda net: loss_of(net, x, y))
    gp = attach(compiled_model, overrides, sampled=Sampled(keep=keep))
    compiled = torch.compile(compiled_model, backend="eager")
    with gp.batch() as batch:
        batch.backward(loss_of(compiled, x, y))
    found = gradients(compiled_model)
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)
