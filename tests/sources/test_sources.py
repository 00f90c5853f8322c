"""`random` and `topk`: what they put into `.grad`, and that everything else stays as plain backpropagation has it."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adagp import AdaGP, Phase, Plan, schedules
from adagp.kernels import topk_weight_grad
from adagp.sources import Random, Source, TopK
from tests.nets import Functional, batches, build, equal_parameters, loss_of, sgd


def attach(model: nn.Module, overrides: dict[str, str], **given_sources: Source) -> AdaGP:
    schedule = schedules.from_function(lambda step: Plan(Phase.BP, "backprop", overrides))
    return AdaGP(model, sgd(model), schedule, None, sources=given_sources)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def plain(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    twin = copy.deepcopy(model)
    loss(twin).backward()
    return gradients(twin)


def under_plan(gp: AdaGP, loss: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    with gp.batch() as batch:
        batch.backward(loss(gp.model))
    return gradients(gp.model)


# ---- topk


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, Tensor]:
    groups = draw(st.sampled_from([1, 2]))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    strided = {"stride": draw(st.integers(1, 2)), "padding": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        strided = {"stride": 1, "padding": draw(st.sampled_from(["same", "valid"]))}
    module = nn.Conv2d(
        2 * groups,
        4,
        kernel,
        dilation=draw(st.integers(1, 2)),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "circular"])),
        **strided,
    )
    return module, torch.randn(draw(st.integers(1, 4)), 2 * groups, draw(st.integers(6, 9)), draw(st.integers(6, 9)))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@settings(max_examples=40, deadline=None)
@given(convolutions(), st.booleans())
def test_topk_of_all_positions_is_the_exact_gradient_through_the_engine(
    case: tuple[nn.Conv2d, Tensor], channels_last: bool
) -> None:
    middle, x = case
    model = nn.Sequential(nn.Conv2d(middle.in_channels, middle.in_channels, 1), middle, nn.ReLU(inplace=True))
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        return (out * torch.arange(out.numel()).view(out.shape).cos()).sum()

    true = plain(model, loss)
    for layer in ("0", "1"):
        found = under_plan(attach(copy.deepcopy(model), {layer: "topk"}, topk=TopK(k=10**6)), loss)
        assert found.keys() == true.keys()
        for name, gradient in true.items():
            assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-4), (layer, name)
            assert found[name].stride() == gradient.stride(), (layer, name)


def test_topk_gives_what_the_kernel_gives_with_the_scale_of_the_paper() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3, stride=2))
    x = torch.randn(8, 2, 9, 9)
    errors: list[Tensor] = []
    hidden = model[:2](x)
    out = model[2](hidden)
    out.register_hook(errors.append)
    out.square().sum().backward()
    expected = topk_weight_grad(hidden.detach(), errors[0], model[2].weight.shape, stride=2, k=3) / 8
    bias = model[2].bias.grad.clone()
    model.zero_grad()
    found = under_plan(attach(model, {"2": "topk"}, topk=TopK(k=3, scale=1 / 8)), lambda net: net(x).square().sum())
    assert torch.allclose(found["2.weight"], expected, atol=1e-5)
    assert torch.allclose(found["2.bias"], bias, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("layer", ["0", "2"])
def test_topk_serves_linear_layers_over_their_positions(shape: tuple[int, ...], bias: bool, layer: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7, bias), nn.ReLU(inplace=True), nn.Linear(7, 3, bias))
    x = torch.randn(shape)

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        return out.square().sum()

    true = plain(model, loss)
    exact = under_plan(attach(copy.deepcopy(model), {layer: "topk"}, topk=TopK(k=100)), loss)
    assert all(torch.allclose(exact[name], true[name], atol=1e-4) for name in true)
    one = under_plan(attach(model, {layer: "topk"}), loss)
    assert torch.allclose(one[f"{layer}.weight"], true[f"{layer}.weight"], atol=1e-4) == (len(shape) == 2)


def test_micro_batches_add_up_under_topk() -> None:
    (x, y), *_ = batches(1)
    model = build()
    model[1].eval()  # batch statistics would tell whole and halves apart

    def halves(net: nn.Module) -> dict[str, Tensor]:
        gp = attach(net, {"0": "topk", "3": "topk"})
        with gp.batch() as batch:
            for part in (slice(4), slice(4, 8)):
                batch.backward(nn.functional.cross_entropy(net(x[part]), y[part], reduction="sum"))
        return gradients(net)

    whole = under_plan(
        attach(copy.deepcopy(model), {"0": "topk", "3": "topk"}),
        lambda net: nn.functional.cross_entropy(net(x), y, reduction="sum"),
    )
    found = halves(model)
    assert all(torch.allclose(found[name], whole[name], atol=1e-5) for name in whole)


def test_a_weight_used_twice_gets_both_shares_under_topk() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 2))
    x = torch.randn(3, 5, 4)

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        return out.square().sum()

    true = plain(model, loss)
    found = under_plan(attach(model, {"0": "topk"}, topk=TopK(k=5)), loss)
    assert torch.allclose(found["0.weight"], true["0.weight"], atol=1e-4)


def test_a_scaler_unscales_what_topk_found() -> None:
    (x, y), *_ = batches(1)
    model = build()
    expected = under_plan(attach(copy.deepcopy(model), {"3": "topk"}), lambda net: loss_of(net, x, y))
    gp = attach(model, {"3": "topk"})
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gp.batch(scaler=scaler) as batch:
        batch.backward(loss_of(model, x, y))
    assert all(torch.allclose(gradient, expected[name], atol=1e-6) for name, gradient in gradients(model).items())


def test_autocast_gives_topk_gradients_in_the_weights_type() -> None:
    (x, y), *_ = batches(1)
    model = build()
    expected = under_plan(attach(copy.deepcopy(model), {"3": "topk"}, topk=TopK(k=4)), lambda net: loss_of(net, x, y))
    gp = attach(model, {"3": "topk"}, topk=TopK(k=4))
    with gp.batch() as batch:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        batch.backward(loss)
    found = model[3].weight.grad
    assert found is not None
    assert found.dtype == torch.float32
    cosine = nn.functional.cosine_similarity(found.flatten(), expected["3.weight"].flatten(), dim=0)
    assert cosine > 0.95


def test_topk_refuses_by_name_what_it_cannot_serve() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ConvTranspose2d(2, 2, 2))
    for layer, kind in (("0", "Conv1d"), ("1", "ConvTranspose2d")):
        with pytest.raises(ValueError, match=f"layer '{layer}' is {kind}: give it another source"):
            attach(model, {layer: "topk"}).batch()
    with pytest.raises(ValueError, match="k = 0"):
        TopK(k=0)


def test_layers_that_topk_cannot_serve_are_left_exact_by_the_exclude_it_offers() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.ConvTranspose1d(3, 2, 3), nn.Flatten(), nn.Linear(16, 2))
    topk = schedules.from_function(lambda step: Plan(Phase.BP, "topk"))
    with pytest.raises(ValueError, match="exclude=") as refused:
        AdaGP(model, sgd(model), topk, None).batch()
    offered = re.search(r"exclude='(.*)'", str(refused.value))
    assert offered is not None
    gp = AdaGP(model, sgd(model), topk, None, exclude=offered[1])
    x = torch.randn(4, 2, 8)
    exact = plain(model, lambda net: net(x).square().mean())
    found = under_plan(gp, lambda net: net(x).square().mean())
    assert all(torch.equal(found[name], exact[name]) for name in exact if not name.startswith("4"))


def test_topk_of_an_empty_batch_is_zero() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    found = under_plan(attach(model, {"0": "topk"}), lambda net: net(torch.randn(0, 4)).square().sum())
    assert not found["0.weight"].any()


def test_a_backward_that_does_not_reach_an_exact_layer_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    gp = attach(model, {})
    for _ in range(2):
        gp.step(lambda: model[1](model[0](torch.ones(2, 4)).detach()).square().mean())
    assert caplog.text.count("layer '0' ran at step 0 but no gradient came to its output, so 'backprop'") == 1


@pytest.mark.parametrize("layer", ["0", "7"])
def test_topk_gets_its_gradients_whoever_runs_the_backward(layer: str) -> None:
    (x, y), *_ = batches(1)
    ours, theirs = build(), build()
    expected = under_plan(attach(ours, {layer: "topk"}), lambda model: loss_of(model, x, y))
    with attach(theirs, {layer: "topk"}).batch() as batch:
        torch.autograd.backward([loss_of(theirs, x, y)])
        batch.ran_backward()
    found = gradients(theirs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_topk_does_not_leave_a_weight_used_functionally_untrained(caplog: pytest.LogCaptureFixture) -> None:
    model = Functional()
    gp = attach(model, {"hidden": "topk"})
    x = torch.randn(8, 4)
    gp.step(lambda: model(x).square().mean())
    assert "layer 'hidden' is not covered: its module was not called at step 0" in caplog.text
    assert not next(row.covered for row in gp.coverage().rows if row.layer == "hidden")
    before = model.hidden.weight.detach().clone()
    gp.step(lambda: model(x).square().mean())
    assert not torch.equal(before, model.hidden.weight)
    fresh = attach(model, {"hidden": "topk"})
    fresh.load_state_dict(gp.state_dict())
    assert not next(row.covered for row in fresh.coverage().rows if row.layer == "hidden")


class Sometimes(nn.Module):
    """Leaves its middle layer out when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.whole = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.middle(x) if self.whole else x)


def test_a_layer_that_has_run_before_may_be_left_out_under_topk() -> None:
    model = Sometimes()
    gp = attach(model, {"middle": "topk"})
    for model.whole in (True, False, True):
        gp.step(lambda: model(torch.ones(2, 4)).square().mean())
    assert next(row.covered for row in gp.coverage().rows if row.layer == "middle")
    assert gp.counts()["topk"] == 2
    assert gp.counts()["skip"] == 1


def test_a_layer_that_runs_but_gets_no_gradient_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Sometimes()
    gp = attach(model, {"middle": "topk"})
    for _ in range(3):
        with gp.batch() as batch:
            model(torch.ones(2, 4))
            batch.backward(model.first(torch.ones(2, 4)).mean())
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    assert caplog.text.count("layer 'middle' ran at step 0 but no gradient came to its output") == 1
    assert caplog.text.count("layer 'middle' ran") == 1


def test_a_gp_plan_cannot_ask_for_topk() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.GP, "skip", {"3": "topk"}), None)
    with pytest.raises(ValueError, match=r"layer '3' asks for it: use Phase\.BP"):
        gp.batch()


# ---- random


def test_random_rows_have_the_standard_deviation_of_one_over_the_batch_and_are_fresh() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(inplace=True), nn.Linear(200, 2))
    gp = attach(model, {"0": "random"})
    x = torch.randn(16, 300)
    drawn = []
    before = torch.get_rng_state()
    for _ in range(2):
        drawn.append(under_plan(gp, lambda net: net(x).square().mean())["0.weight"])
        gp.optimizer.zero_grad()
    assert torch.equal(torch.get_rng_state(), before)  # the user's generator is left alone
    assert not torch.equal(*drawn)
    for rows in drawn:
        assert abs(float(rows.std()) * 16 - 1) < 0.02
        assert abs(float(rows.mean())) < 1e-3
    assert abs(float(torch.corrcoef(torch.stack([rows.flatten() for rows in drawn]))[0, 1])) < 0.02


def test_random_takes_a_standard_deviation_and_a_seed() -> None:
    x = torch.randn(4, 50)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(50, 60), nn.Linear(60, 2))
        gp = attach(model, {"0": "random"}, random=Random(std=2.0, seed=seed))
        found.append(under_plan(gp, lambda net: net(x).square().mean())["0.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert abs(float(found[0].std()) - 2) < 0.1


def test_random_in_gp_runs_the_forward_to_know_the_batch() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="random"), None, skip_forward=True)
    (x, y), *_ = batches(1)
    assert gp.step(lambda: loss_of(model, x, y)) is not None
    assert gp.counts() == {"random": 4}


# ---- mixed plans


def test_all_sources_mix_in_one_plan_and_resume_bit_for_bit() -> None:
    plans = [
        Plan(Phase.BP, "backprop"),
        Plan(Phase.BP, "backprop", {"0": "topk", "3": "random", "7": "predicted", "9": "mean"}),
        Plan(Phase.BP, "backprop", {"0": "zero", "3": "predicted", "7": "last"}),
    ]

    def start() -> AdaGP:
        model = build()
        return AdaGP(model, sgd(model), lambda step: plans[step % 3], "paper")

    data = batches(9)

    def run(gp: AdaGP, part: slice) -> None:
        for x, y in data[part]:
            gp.step(lambda x=x, y=y: loss_of(gp.model, x, y))  # type: ignore[misc]

    whole, first, second = start(), start(), start()
    run(whole, slice(9))
    run(first, slice(5))
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    run(second, slice(5, 9))
    assert equal_parameters(whole.model, second.model)
    assert whole.counts() == second.counts()
    assert whole.counts() == {
        "backprop": 15,
        "topk": 3,
        "random": 3,
        "predicted": 6,
        "mean": 3,
        "zero": 3,
        "last": 3,
    }


def test_a_batch_in_which_no_layer_needs_a_backward_goes_on() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    gp = AdaGP(model, sgd(model), schedules.approximation("3", ["0", "1"], "random"), None)
    x = torch.randn(8, 4)
    for _ in range(8):
        gp.step(lambda: model(x).square().mean())
    assert gp.counts() == {"backprop": 12, "random": 4}
    with pytest.raises(RuntimeError, match="the loss depends on no trainable parameter"):
        gp.step(lambda: torch.zeros(()))


def test_a_source_that_no_plan_asks_for_is_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match=r"sources=\['topk'\]: no plan of the schedule asks for them"):
        AdaGP(model, sgd(model), schedules.always_backprop(), None, sources={"topk": TopK()})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it where the graph breaks
def test_topk_works_in_a_compiled_model() -> None:
    (x, y), *_ = batches(1)
    model = build()
    expected = under_plan(attach(copy.deepcopy(model), {"3": "topk"}), lambda net: loss_of(net, x, y))
    gp = attach(model, {"3": "topk"})
    compiled = torch.compile(model, backend="eager")
    with gp.batch() as batch:
        batch.backward(loss_of(compiled, x, y))
    assert all(torch.allclose(gradient, expected[name], atol=1e-6) for name, gradient in gradients(model).items())


# ---- what else users' models do


@pytest.mark.parametrize("reentrant", [True, False])
def test_topk_works_under_activation_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 1))
    x = torch.randn(3, 2, 6, 6)

    def loss(net: nn.Module) -> Tensor:
        assert isinstance(net, nn.Sequential)
        hidden = checkpoint(net[1], net[0](x), use_reentrant=reentrant)
        out: Tensor = net[2](hidden)
        return out.square().sum()

    true = plain(model, loss)
    found = under_plan(attach(model, {"1": "topk"}, topk=TopK(k=36)), loss)
    assert all(torch.allclose(found[name], true[name], rtol=1e-4, atol=1e-4) for name in true)


def test_topk_refuses_a_parameter_that_two_modules_own() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    biases = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    biases[2].bias = biases[0].bias
    for model in (tied, biases):
        with pytest.raises(ValueError, match="layer '0' belongs to another module too: give it another source"):
            attach(model, {"0": "topk"}).batch()


def test_topk_refuses_a_forward_that_is_not_torchs() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, self.weight - self.weight.mean())

    class Renamed(nn.Conv2d):
        """Computes what Conv2d does."""

    with pytest.raises(ValueError, match="layer '0' is Standardised with a forward of its own"):
        attach(nn.Sequential(Standardised(2, 2, 1)), {"0": "topk"}).batch()
    attach(nn.Sequential(Renamed(2, 2, 1)), {"0": "topk"}).batch()


def test_what_other_hooks_make_of_an_output_does_not_confuse_topk() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, inputs, output: output * 3)
    x = torch.randn(5, 3)

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        return out.square().sum()

    true = plain(model, loss)
    found = under_plan(attach(model, {"0": "topk"}), loss)
    assert torch.allclose(found["0.weight"], true["0.weight"], atol=1e-4)


def test_the_users_own_autograd_calls_do_not_count_for_topk() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        torch.autograd.grad(out.sum(), x, retain_graph=True)
        return out.square().sum()

    true = plain(model, loss)
    found = under_plan(attach(model, {"0": "topk"}), loss)
    assert torch.allclose(found["0.weight"], true["0.weight"], atol=1e-5)


def test_a_layer_called_by_keyword_is_served() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(input=x).tanh())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Named(), torch.randn(5, 3)

    def loss(net: nn.Module) -> Tensor:
        out: Tensor = net(x)
        return out.square().sum()

    true = plain(model, loss)
    assert torch.allclose(under_plan(attach(model, {"a": "topk"}), loss)["a.weight"], true["a.weight"], atol=1e-5)


def test_mixed_plans_run_their_forward_whatever_skip_forward_says() -> None:
    model = build()
    layers = ["0", "3", "7", "9"]
    gp = AdaGP(model, sgd(model), schedules.approximation("3", layers, "zero"), None, skip_forward=True)
    for x, y in batches(4):
        assert gp.step(lambda x=x, y=y: loss_of(model, x, y)) is not None  # type: ignore[misc]
    assert gp.counts() == {"backprop": 12, "zero": 4}


def test_a_scaler_is_left_alone_in_a_batch_without_a_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    gp = AdaGP(model, sgd(model), schedules.approximation("3", ["0", "1"], "zero"), None)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x = torch.randn(8, 4)
    for _ in range(8):
        gp.step(lambda: model(x).square().mean(), scaler=scaler)
    assert gp.counts() == {"backprop": 12, "zero": 4}


def test_random_counts_the_samples_of_a_batch_once() -> None:
    torch.manual_seed(0)
    twice = nn.Linear(120, 120)
    model = nn.Sequential(twice, nn.Tanh(), twice, nn.Linear(120, 2))
    x = torch.randn(16, 120)
    gp = attach(model, {"0": "random"})

    def peeking(net: nn.Module) -> Tensor:
        with torch.no_grad():
            net(x)
        out: Tensor = net(x)
        return out.square().mean()

    assert abs(float(under_plan(gp, peeking)["0.weight"].std()) * 16 - 1) < 0.03
    gp.optimizer.zero_grad()
    with gp.batch() as batch:
        for part in (slice(8), slice(8, 16)):
            batch.backward(model(x[part]).square().mean())
    assert abs(float(gradients(model)["0.weight"].std()) * 16 - 1) < 0.03
    gp.optimizer.zero_grad()
    with gp.batch() as batch:
        batch.backward(model(x[:0]).square().sum())
    assert twice.weight.grad is None


def test_a_state_is_refused_beside_other_options_of_a_source() -> None:
    saved = attach(build(), {"3": "topk"}, topk=TopK(k=4)).state_dict()
    with pytest.raises(ValueError, match=r"another sources .*topk\(k=4.*topk\(k=1"):
        attach(build(), {"3": "topk"}).load_state_dict(saved)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(k=2.5),  # type: ignore[arg-type]
        lambda: TopK(scale=float("nan")),
        lambda: Random(std=-1.0),
        lambda: Random(std=float("nan")),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], Source]) -> None:
    with pytest.raises(ValueError, match=r"(k|scale|std) = "):
        make()
