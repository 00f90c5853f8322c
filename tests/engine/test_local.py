"""Local losses against plain autograd on the detached parts, and everything that must hold with them."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adagp import AdaGP, NonFiniteError, Phase, Plan, schedules
from adagp.local import cross_entropy
from adagp.measure import peak_bytes
from adagp.models.gpt import GPT
from adagp.models.resnet_cifar import SmallResNet
from adagp.sources import Local
from tests.nets import batches, build, equal_parameters, loss_of, sgd

CUTS = ("2", "5")


def attach(model: nn.Module, optimizer: Any = None, source: Local | None = None, **options: Any) -> AdaGP:
    return AdaGP(
        model,
        sgd(model) if optimizer is None else optimizer,
        schedules.always_local(),
        None,
        sources={"local": Local(CUTS) if source is None else source},
        **options,
    )


SAME = object()


def step(gp: AdaGP, model: Any, x: Tensor, y: Tensor, factor: float = 1.0, target: Any = SAME, **options: Any) -> Any:
    target = y if target is SAME else target
    return gp.step(lambda: loss_of(model, x, y) * factor, target=target, **options)


def by_hand(model: nn.Sequential, heads: dict[str, nn.Module], x: Tensor, y: Tensor, factor: float = 1.0) -> None:
    """The oracle: each part on the detached output of the one before."""
    for name, module in model.named_children():
        x = module(x)
        if name in heads:
            (heads[name](x, y) * factor).backward()
            x = x.detach()
    (nn.functional.cross_entropy(x, y) * factor).backward()


def grads(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def warmed(source: Local) -> tuple[nn.Sequential, AdaGP]:
    """A model whose heads exist and have learned a little."""
    model = build()
    gp = attach(model, source=source)
    for x, y in batches(2, seed=3):
        step(gp, model, x, y)
    return model, gp


@pytest.mark.parametrize("head", ["dgl", "predsim"])
def test_gradient_of_each_part_is_that_of_plain_autograd_on_the_detached_part(head: str) -> None:
    source = Local(CUTS, head=head)
    model, gp = warmed(source)
    twin, heads = copy.deepcopy(model), copy.deepcopy(source.heads)
    x, y = batches(1, seed=7)[0]
    with gp.batch(target=y) as batch:
        batch.backward(loss_of(model, x, y))
    by_hand(twin, heads, x, y)
    assert len(grads(model)) == len(list(model.parameters()))
    for found, wanted in zip(grads(model), grads(twin), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("head", ["dgl", "predsim"])
def test_channels_last_gives_the_same_gradients_in_its_layout(head: str) -> None:
    source = Local(CUTS, head=head)
    model, gp = warmed(source)
    x, y = batches(1, seed=7)[0]
    twin, heads = copy.deepcopy(model), copy.deepcopy(source.heads)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with gp.batch(target=y) as batch:
        batch.backward(loss_of(model, x.to(memory_format=torch.channels_last), y))
    by_hand(twin, heads, x, y)
    for found, wanted in zip(model.parameters(), grads(twin), strict=True):
        assert found.grad is not None
        assert found.grad.stride() == found.stride()
        assert torch.allclose(found.grad, wanted, atol=1e-6)


def test_heads_follow_the_optimizer_and_its_learning_rate() -> None:
    source = Local(CUTS)
    model, gp = warmed(source)
    twin, heads = copy.deepcopy(model), copy.deepcopy(source.heads)
    state = copy.deepcopy(gp.state_dict()["sources"]["local"]["optimizer"])
    gp.optimizer.param_groups[0]["lr"] = 0.5
    x, y = batches(1, seed=7)[0]
    step(gp, model, x, y)

    by_hand(twin, heads, x, y)
    optimizer = torch.optim.SGD([part for head in heads.values() for part in head.parameters()], lr=0.5, momentum=0.9)
    optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    for cut in CUTS:
        assert equal_parameters(source.heads[cut], heads[cut])


@pytest.mark.parametrize("source", [Local(()), Local(parts=1)], ids=["no cuts", "one part"])
@pytest.mark.parametrize("make", [sgd, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)])
def test_without_cuts_training_is_the_plain_loop_bit_for_bit(source: Local, make: Callable[..., Any]) -> None:
    plain, model = build(), build()
    optimizer = make(plain)
    gp = attach(model, make(model), copy.deepcopy(source))
    for x, y in batches(5):
        optimizer.zero_grad()
        loss_of(plain, x, y).backward()
        optimizer.step()
        step(gp, model, x, y)
    assert equal_parameters(plain, model)


def test_the_model_keeps_its_state_dict_and_heads_are_saved_beside_it() -> None:
    model = build()
    keys = list(model.state_dict())
    gp = attach(model)
    x, y = batches(1)[0]
    step(gp, model, x, y)
    assert list(model.state_dict()) == keys
    assert set(gp.state_dict()["sources"]["local"]["heads"]) == set(CUTS)
    gp.remove()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_tracing_the_first_forward_leaves_buffers_and_random_numbers_alone() -> None:
    model, twin = build(), build()
    gp = attach(
        model, source=Local(("5",), head=lambda activation, output: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)))
    )
    x, y = batches(1)[0]
    torch.manual_seed(5)
    step(gp, model, x, y)
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after)
    twin(x)
    norm, other = model[1], twin[1]
    assert torch.equal(norm.running_mean, other.running_mean)  # type: ignore[arg-type]
    assert int(norm.num_batches_tracked) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize("source", [lambda: Local(CUTS), lambda: Local(parts=2, head="predsim")])
def test_a_resumed_run_is_bit_for_bit_the_one_that_was_not_interrupted(source: Callable[[], Local], stop: int) -> None:
    def run(gp: AdaGP, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
        for x, y in data:
            step(gp, model, x, y)

    data = batches(6)
    model = build()
    gp = attach(model, source=source())
    run(gp, model, data)

    first = build()
    before = attach(first, source=source())
    run(before, first, data[:stop])
    saved = copy.deepcopy((first.state_dict(), before.optimizer.state_dict(), before.state_dict()))
    second = build(seed=9)
    after = attach(second, source=source())
    second.load_state_dict(saved[0])
    after.optimizer.load_state_dict(saved[1])
    after.load_state_dict(saved[2])
    assert stop == 0 or after.state_dict()["sources"]["local"]["heads"] is not None
    run(after, second, data[stop:])
    assert equal_parameters(model, second)
    for one, two in zip(_heads(gp), _heads(after), strict=True):
        assert equal_parameters(one, two)


def _heads(gp: AdaGP) -> list[nn.Module]:
    source = gp.sources["local"]
    assert isinstance(source, Local)
    return list(source.heads.values())


def test_micro_batches_accumulate_in_parts_and_heads() -> None:
    source = Local(CUTS, loss=lambda output, target: cross_entropy(output, target) / 2)
    model, gp = warmed(source)
    twin, heads = copy.deepcopy(model), copy.deepcopy(source.heads)
    pieces = batches(2, seed=7)
    with gp.batch() as batch:
        for x, y in pieces:
            batch.expect_local(y)
            batch.backward(loss_of(model, x, y) / 2)
    for x, y in pieces:
        out = x
        for name, module in twin.named_children():
            out = module(out)
            if name in heads:
                heads[name](out, y).backward()
                out = out.detach()
        (nn.functional.cross_entropy(out, y) / 2).backward()
    for found, wanted in zip(grads(model), grads(twin), strict=True):
        torch.testing.assert_close(found, wanted)


def test_step_accumulates_too_and_steps_once() -> None:
    model, gp = warmed(Local(CUTS))
    twin = copy.deepcopy(model)
    for last, (x, y) in zip((False, True), batches(2, seed=7), strict=True):
        step(gp, model, x, y, factor=0.5, last=last)
        assert equal_parameters(model, twin) is False  # batch norm's statistics
        assert torch.equal(model[0].weight, twin[0].weight) is not last
    assert gp.step_index == 3


@pytest.mark.parametrize("divided", [False, True])
def test_a_loss_that_is_divided_where_local_losses_are_not_is_noticed(
    divided: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = build()
    loss = (lambda output, target: cross_entropy(output, target) / 2) if divided else cross_entropy
    gp = attach(model, source=Local(CUTS, loss=loss))
    for last, (x, y) in zip((False, True), batches(2), strict=True):
        step(gp, model, x, y, factor=0.5, last=last)
    assert ("give Local(loss=...) one that is divided too" in caplog.text) is not divided


def test_a_grad_scaler_scales_local_losses_and_skips_what_is_not_finite() -> None:
    source = Local(CUTS)
    model, gp = warmed(source)
    twin, heads = copy.deepcopy(model), copy.deepcopy(source.heads)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = batches(1, seed=7)[0]
    with gp.batch(scaler, target=y) as batch:
        batch.backward(loss_of(model, x, y))
    by_hand(twin, heads, x, y)
    for found, wanted in zip(grads(model), grads(twin), strict=True):
        torch.testing.assert_close(found, wanted)
    scaler.step(gp.optimizer)
    scaler.update()
    gp.optimizer.zero_grad()
    before = copy.deepcopy((model.state_dict(), source.heads["2"].state_dict()))
    gp.step(lambda: loss_of(model, x, y), scaler, target=y)
    assert not torch.equal(model.state_dict()["0.weight"], before[0]["0.weight"])
    before = copy.deepcopy((model.state_dict(), source.heads["2"].state_dict()))
    gp.step(lambda: loss_of(model, torch.full_like(x, torch.inf), y), scaler, target=y)
    assert torch.equal(model.state_dict()["0.weight"], before[0]["0.weight"])
    assert torch.equal(source.heads["2"].state_dict()["network.0.weight"], before[1]["network.0.weight"])
    assert scaler.get_scale() == 512.0


def test_half_precision_forward_gives_what_autocast_gives_by_hand() -> None:
    source = Local(CUTS)
    model, gp = warmed(source)
    twin, heads = copy.deepcopy(model), copy.deepcopy(source.heads)
    x, y = batches(1, seed=7)[0]
    with gp.batch(target=y) as batch:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        batch.backward(loss)
    out = x
    for name, module in twin.named_children():
        with torch.autocast("cpu", torch.bfloat16):
            out = module(out)
            loss = heads[name](out, y) if name in heads else None
        if loss is not None:
            loss.backward()
            out = out.detach()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    for found, wanted in zip(grads(model), grads(twin), strict=True):
        assert torch.equal(found, wanted)


def test_another_library_runs_every_backward() -> None:
    model, gp = warmed(Local(CUTS))
    x, y = batches(1, seed=7)[0]
    losses: list[float] = []

    def backward(loss: Tensor) -> None:
        losses.append(float(loss.detach()))
        loss.backward()

    gp.step(lambda: loss_of(model, x, y), backward=backward, target=y)
    assert len(losses) == 3
    with pytest.raises(ValueError, match=r"use gp\.step"), gp.batch(target=y) as batch:
        batch.backward(loss_of(model, x, y), by=backward)


def test_activations_of_one_part_are_alive_at_a_time() -> None:
    """What the graph keeps for the first part is gone when the second one runs."""
    model, gp = warmed(Local(("5",)))
    x, y = batches(1)[0]
    alive: list[int] = []
    saved: set[int] = set()

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            saved.add(id(self))

        def __del__(self) -> None:
            saved.discard(id(self))

    hook = model[7].register_forward_pre_hook(lambda *_: alive.append(len(saved)))
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        step(gp, model, x, y)
    hook.remove()
    assert alive == [0]


def test_peak_memory_falls_to_that_of_the_largest_part() -> None:
    def net() -> nn.Sequential:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(12)]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    x, y = torch.randn(16, 8, 24, 24), torch.randint(3, (16,))
    peaks = []
    for source in (Local(()), Local(parts=2), Local(parts=4)):
        model = net()
        gp = attach(model, source=source)

        step(gp, model, x, y)
        peaks.append(peak_bytes(partial(step, gp, model, x, y), torch.device("cpu")))
    assert peaks[0] > 1.5 * peaks[1] > 1.5 * 1.2 * peaks[2]


def test_parts_of_equal_cost_are_found_in_residual_networks_and_transformers() -> None:
    model = SmallResNet(3, num_classes=4, in_channels=3)
    source = Local(parts=3, balance="macs")
    gp = attach(model, source=source)
    x, y = torch.randn(4, 3, 16, 16), torch.randint(4, (4,))
    step(gp, model, x, y)
    assert source.cuts == ("stages.0", "stages.1")
    assert gp.counts() == {"local": 20}

    gpt = GPT(vocabulary=50, context=16, layers=4, width=16, heads=2, dropout=0.0)
    source = Local(parts=2, balance="macs")
    gp = attach(gpt, torch.optim.AdamW(gpt.parameters(), lr=1e-2), source)
    tokens = torch.randint(50, (4, 17))
    losses = []
    for _ in range(30):
        loss = gp.step(
            lambda: nn.functional.cross_entropy(gpt(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
            target=tokens[:, 1:],
        )
        assert isinstance(loss, Tensor)
        losses.append(float(loss.detach()))
    assert source.cuts == ("blocks.1",)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own, at each break of its graph
@pytest.mark.parametrize("source", [lambda: Local(CUTS), lambda: Local(parts=2)], ids=["named", "by rule"])
def test_a_compiled_model_trains_as_the_plain_one(source: Callable[[], Local]) -> None:
    models = [build(), build()]
    for model, compiled in zip(models, (False, True), strict=True):
        gp = attach(model, source=source())
        forward: Any = torch.compile(model, backend="aot_eager") if compiled else model
        for x, y in batches(3):
            step(gp, forward, x, y)
        assert gp.counts() == {"local": 12}
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own, at each break of its graph
def test_code_compiled_for_an_equal_model_without_hooks_is_noticed() -> None:
    torch.compiler.reset()
    (x, y), *_ = batches(1)
    other = build()
    exact, compiled = AdaGP(other, sgd(other), schedules.always_backprop(), None), torch.compile(other, backend="eager")
    for _ in range(3):
        exact.step(lambda: loss_of(compiled, x, y))
    model = build()
    gp, forward = attach(model, source=Local(CUTS)), torch.compile(model, backend="eager")
    with pytest.raises(RuntimeError, match=r"no local loss was computed at step 0.*torch\.compiler\.reset"):
        step(gp, forward, x, y)
    assert not gp._setup.has_gradients()
    torch.compiler.reset()
    step(gp, forward, x, y)
    assert gp.counts() == {"local": 4}


def test_a_checkpointed_part_is_recomputed_for_its_own_loss() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return found

    def net(checkpointed: bool) -> nn.Sequential:
        torch.manual_seed(0)
        parts = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2)]
        return nn.Sequential(*((Checkpointed(part) for part in parts) if checkpointed else parts), nn.Linear(4, 3))

    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    models = [net(False), net(True)]
    for model in models:
        gp = attach(model, source=Local(["0"]))
        for _ in range(3):
            step(gp, model, x, y)
    assert all(torch.equal(one, two) for one, two in zip(*(model.parameters() for model in models), strict=True))


def test_topk_and_frozen_layers_take_part() -> None:
    model = build()
    plan = Plan(Phase.BP, "local", {"3": "topk", "7": "backprop", "9": "backprop"})
    gp = AdaGP(
        model,
        sgd(model),
        schedules.from_function(lambda step: plan, ["local", "topk", "backprop"]),
        None,
        sources={"local": Local(("5",))},
    )
    x, y = batches(1)[0]
    step(gp, model, x, y)
    assert gp.counts() == {"topk": 1, "backprop": 2, "local": 1}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"0": "backprop"}, r"layer '0' backprop, but .* does not cross the cut '5'"),
        ({"8": "local"}, "not covered|has not"),
    ],
)
def test_impossible_mixes_are_refused_by_name(overrides: dict[str, str], message: str) -> None:
    model = build()
    plan = Plan(Phase.BP, "local", overrides)
    gp = AdaGP(
        model,
        sgd(model),
        schedules.from_function(lambda step: plan, ["local", "backprop"]),
        None,
        sources={"local": Local(("5",))},
    )
    x, y = batches(1)[0]
    with pytest.raises(ValueError, match=message):
        step(gp, model, x, y)


def test_a_plan_without_local_leaves_the_network_whole() -> None:
    plain, model = build(), build()
    optimizer = sgd(plain)
    schedule = schedules.from_function(lambda step: Plan(Phase.BP, "backprop"), ["local", "backprop"])
    gp = AdaGP(model, sgd(model), schedule, None, sources={"local": Local(CUTS)})
    for x, y in batches(3):
        optimizer.zero_grad()
        loss_of(plain, x, y).backward()
        optimizer.step()
        step(gp, model, x, y, target=None)
    assert equal_parameters(plain, model)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.inner(x).relu())  # type: ignore[no-any-return]


def residual() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 3))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.once, self.again, self.pair, self.head = nn.Linear(4, 4), nn.Linear(4, 4), _Pair(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.pair(self.again(self.again(self.once(x))))
        return self.head(left + right)  # type: ignore[no-any-return]


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("make", "cuts", "message"),
    [
        (residual, ["1.inner"], r"cut '1.inner': its output is not the only thing that crosses.*cut at '1' instead"),
        (tied, ["1"], r"cut '1': parameter '0.weight' is used on both sides of it"),
        (residual, ["2"], r"cut '2': no trained parameter stands after it"),
        (Twice, ["again"], r"cut 'again': it is called 2 times in one forward"),
        (Twice, ["pair"], r"cut 'pair': it returns tuple, not one tensor; cut at 'once' instead|cut 'pair'"),
        (Twice, ["again", "pair"], r"cut 'again'.*cut 'pair'"),
    ],
)
def test_cuts_that_cannot_work_are_refused_by_name_in_the_first_batch(
    make: Callable[[], nn.Module], cuts: list[str], message: str
) -> None:
    model = make()
    before = copy.deepcopy(model.state_dict())
    gp = attach(model, source=Local(cuts))
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    with pytest.raises(ValueError, match=message):
        step(gp, model, x, y)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_mistakes_are_refused_by_name() -> None:
    model = build()
    with pytest.raises(ValueError, match=r"the model has no module 'features.1'; did you mean"):
        attach(model, source=Local(["features.1"]))
    with pytest.raises(TypeError, match=r"cuts = '2': give a list"):
        Local("2")
    with pytest.raises(ValueError, match="parts = 0"):
        Local(parts=0)
    with pytest.raises(ValueError, match=r"head = 'mlp': choose dgl or predsim"):
        Local(head="mlp")
    x, y = batches(1)[0]
    with pytest.raises(ValueError, match=r"gp.step\(closure, target=y\)"):
        attach(model).step(lambda: loss_of(model, x, y))
    plain = build()
    gp = AdaGP(plain, sgd(plain), schedules.always_backprop(), None)
    with pytest.raises(ValueError, match="no plan of the schedule asks for local losses"):
        gp.step(lambda: loss_of(plain, x, y), target=y)
    whole = build()
    with pytest.raises(RuntimeError, match="call the model itself"):
        attach(whole).step(lambda: loss_of(nn.Sequential(*whole), x, y), target=y)
    lbfgs = build()
    with pytest.raises(ValueError, match="LBFGS"):
        attach(lbfgs, torch.optim.LBFGS(lbfgs.parameters())).step(lambda: loss_of(lbfgs, x, y))
    stage = build()
    gp = attach(stage)
    gp.join_pipeline(0)
    with pytest.raises(ValueError, match="this stage has no head"):
        step(gp, stage, x, y)
    last = build()
    with pytest.raises(ValueError, match="parts = 9: the model has no module that ends part"):
        attach(last, source=Local(parts=9)).step(lambda: loss_of(last, x, y), target=y)


def test_a_local_loss_that_is_not_finite_stops_before_anything_is_updated() -> None:
    model = build()
    gp = attach(model, source=Local(CUTS, loss=lambda output, target: output.sum() * torch.inf))
    x, y = batches(1)[0]
    before = model[0].weight.clone()
    with pytest.raises(NonFiniteError, match="local loss at cut '2' is not finite at step 0"):
        step(gp, model, x, y)
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None


def test_an_optimizer_that_cannot_be_copied_is_refused_and_another_can_be_given() -> None:
    class Odd(torch.optim.SGD):
        def __init__(self, parameters: Any, wanted: object) -> None:
            super().__init__(parameters, lr=0.1)

    model = build()
    x, y = batches(1)[0]
    with pytest.raises(ValueError, match=r"cannot have a Odd like the model's"):
        attach(model, Odd(model.parameters(), 1)).step(lambda: loss_of(model, x, y), target=y)
    other = build()
    source = Local(CUTS, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    gp = attach(other, Odd(other.parameters(), 1), source)
    gp.step(lambda: loss_of(other, x, y), target=y)
    assert "exp_avg" in gp.state_dict()["sources"]["local"]["optimizer"]["state"][0]
