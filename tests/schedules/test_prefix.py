"""Prefix schedules under the real engine: exact after the prefix, and without a graph before its end."""

import copy

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, models, schedules
from tests.nets import batches, build, equal_parameters, loss_of, sgd


def true_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """By a plain backward on a copy."""
    plain = copy.deepcopy(model)
    loss_of(plain, x, y).backward()
    return {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}


def graph_nodes(loss: Tensor) -> int:
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize("source", ["zero", "mean", "predicted", "random", "last", "skip"])
def test_later_layers_are_exact_and_the_prefix_has_no_graph(source: str) -> None:
    model = build()
    schedule = schedules.prefix(model, "3", schedules.fixed(1, 2, source))
    gp = AdaGP(model, sgd(model), schedule)
    needs_grad: dict[str, bool] = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _, i, output, name=name: needs_grad.update({name: output.requires_grad}))
    work = batches(1) * 4  # the same batch again, so that predictions are trusted
    for x, y in work[:3]:  # so that there is a mean, a last gradient and a predictor that has learned
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    x, y = work[3]
    wanted = true_gradients(model, x, y)
    plain_nodes = graph_nodes(loss_of(model, x, y))
    with gp.batch() as batch:
        assert batch.plan.phase is Phase.BP
        loss = loss_of(model, x, y)
        nodes = graph_nodes(loss)
        batch.backward(loss)
    assert {name for name, needs in needs_grad.items() if not needs} == {"0", "1", "2", "3", "4", "5", "6"}
    assert nodes < plain_nodes / 2
    for name in ("7.weight", "7.bias", "9.weight", "9.bias"):
        assert torch.equal(model.get_parameter(name).grad, wanted[name]), name  # type: ignore[arg-type]
    assert model.get_parameter("1.weight").grad is None
    early = model.get_parameter("0.weight").grad
    assert (early is None) == (source == "skip")
    if source == "zero":
        assert early is not None
        assert not early.any()


@pytest.mark.parametrize("source", ["zero", "random", "topk", "predicted"])
@pytest.mark.parametrize("layer", ["0", "3", "7", "9"])
def test_one_approximated_layer_leaves_every_other_gradient_exact(source: str, layer: str) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.approximate([layer], source))
    ((x, y),) = batches(1)
    wanted = true_gradients(model, x, y)
    with gp.batch() as batch:
        batch.backward(loss_of(model, x, y))
    others = [name for name in wanted if not name.startswith(f"{layer}.")]
    assert len(others) >= len(wanted) - 2
    for name in others:
        assert torch.equal(model.get_parameter(name).grad, wanted[name]), name  # type: ignore[arg-type]


def test_other_batches_are_the_ladders_own() -> None:
    model = build()
    ladder = schedules.ladder(5, warmup_epochs=1, rung_epochs=2, source="zero")
    schedule = schedules.prefix(model, "0", ladder)
    assert schedule.sources == {"backprop", "skip", "zero"}
    for step in range(60):
        plan, own = schedule(step), ladder(step)
        if own.phase is Phase.GP:
            assert (plan.phase, plan.note) == (Phase.BP, own.note)
            assert plan.overrides == {"0": "zero"}
        else:
            assert plan == own


def test_a_module_ends_the_prefix_with_everything_in_it() -> None:
    model = models.build("resnet20")
    plan = schedules.prefix(model, "stages.0", schedules.fixed(1, 1, "predicted"))(0)
    in_prefix = {name for name in plan.overrides if name.startswith(("stem.", "stages.0."))}
    assert set(plan.overrides) == in_prefix
    assert [plan.overrides[name] for name in ("stem.0", "stem.1", "stages.0.2.conv2", "stages.0.2.bn2")] == [
        "predicted",
        "skip",
        "predicted",
        "skip",
    ]
    assert len(in_prefix) == 2 * 7


def test_layers_left_out_rest_in_the_prefix() -> None:
    plan = schedules.prefix(build(), "3", schedules.fixed(1, 1, "zero"), exclude="^0$")(0)
    assert plan.overrides == {"0": "skip", "1": "skip", "3": "zero"}


def test_what_ends_no_prefix_is_refused() -> None:
    ladder = schedules.fixed(1, 1, "zero")
    with pytest.raises(ValueError, match=r"until='conv9' is no module with parameters; the layers are: 0, 3, 7, 9"):
        schedules.prefix(build(), "conv9", ladder)
    x, y = batches(1)[0]
    for until, exclude, message in (
        ("0", "^0$", r"until='0' has no layer up to its end; the layers are: 3, 7, 9"),
        ("9", None, r"until='9' leaves no layer after the prefix: use the ladder itself"),
    ):
        model = build()
        gp = AdaGP(model, sgd(model), schedules.prefix(model, until, ladder, exclude=exclude), exclude=exclude)
        with pytest.raises(ValueError, match=message):
            gp.step(lambda model=model: loss_of(model, x, y))


@pytest.mark.parametrize("source", ["mean", "predicted", "random"])
def test_a_prefix_run_resumes_bit_for_bit(source: str) -> None:
    def attached(seed: int) -> tuple[nn.Module, AdaGP]:
        model = build(seed)
        return model, AdaGP(model, sgd(model), schedules.prefix(model, "3", schedules.fixed(2, 1, source)))

    work = batches(9)
    whole, gp = attached(0)
    part, first = attached(0)
    again, second = attached(1)
    for x, y in work:
        gp.step(lambda x=x, y=y: loss_of(whole, x, y))
    for x, y in work[:4]:
        first.step(lambda x=x, y=y: loss_of(part, x, y))
    again.load_state_dict(part.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    for x, y in work[4:]:
        second.step(lambda x=x, y=y: loss_of(again, x, y))
    assert equal_parameters(whole, again)


# ---- models whose modules are not registered in the order they run


class Backwards(nn.Module):
    """Registers its last layer first, as a network with a `mid_block` may."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.late = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.early = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.late(self.norm(self.early(x)).relu()).relu())  # type: ignore[no-any-return]


def step(gp: AdaGP, x: Tensor) -> None:
    gp.step(lambda: gp.model(x).square().mean())


def test_the_prefix_follows_the_order_of_the_forward(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = Backwards()
    schedule = schedules.prefix(model, "early", schedules.fixed(1, 1, "zero"))
    gp = AdaGP(model, sgd(model), schedule)
    x = torch.randn(8, 4)
    step(gp, x)
    step(gp, x)
    assert schedule(0).overrides == {"early": "zero"}
    assert "order" in caplog.text  # the first batch was cut by the order of registration
    with gp.batch() as batch:
        loss = model(x).square().mean()
        batch.backward(loss)
    assert model.norm.weight.grad is not None
    assert model.late.weight.grad is not None
    assert not model.early.weight.grad.any()
    assert not any(hook for module in model.modules() for hook in module._forward_pre_hooks)


def test_the_order_of_the_forward_is_saved() -> None:
    def attached(seed: int) -> tuple[nn.Module, AdaGP]:
        torch.manual_seed(seed)
        model = Backwards()
        schedule = schedules.prefix(model, "norm", schedules.ladder(2, 1, 1, rungs=((1, 1),), source="zero"))
        return model, AdaGP(model, sgd(model), schedule)

    x = torch.randn(8, 4)
    (whole, one), (part, two), (again, three) = attached(0), attached(0), attached(1)
    for _ in range(6):
        step(one, x)
    for _ in range(2):
        step(two, x)
    again.load_state_dict(part.state_dict())
    three.optimizer.load_state_dict(two.optimizer.state_dict())
    three.load_state_dict(two.state_dict())
    assert three.next_plan().overrides == {"early": "zero", "norm": "skip"}
    for _ in range(4):
        step(three, x)
    assert equal_parameters(whole, again)


def test_an_end_that_is_last_in_the_forward_is_refused_when_that_is_seen() -> None:
    model = Backwards()
    gp = AdaGP(model, sgd(model), schedules.prefix(model, "head", schedules.ladder(1, 1, 1, source="zero")))
    with pytest.raises(ValueError, match="until='head' leaves no layer after the prefix"):
        step(gp, torch.randn(8, 4))


class HeadFirst(nn.Module):
    """Registers its head first and has a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first, self.second = nn.Linear(6, 2), nn.Linear(4, 6), nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu())  # type: ignore[no-any-return]


def test_the_batch_that_shows_the_order_is_exact() -> None:
    model = HeadFirst()
    gp = AdaGP(model, sgd(model), schedules.prefix(model, "second", schedules.fixed(1, 0, "zero")))
    step(gp, torch.randn(8, 4))
    assert gp.counts() == {"backprop": 3}
    step(gp, torch.randn(8, 4))
    assert gp.counts() == {"backprop": 4, "zero": 2}


class TiedHead(nn.Module):
    """A language model whose head is its embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(self.embed(x)).relu()))  # type: ignore[no-any-return]


def test_a_tied_weight_that_defeats_the_cut_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = TiedHead()
    gp = AdaGP(model, sgd(model), schedules.prefix(model, "first", schedules.fixed(1, 1, "zero")))
    for _ in range(4):
        step(gp, torch.tensor([[1, 2], [3, 4]]))
    assert caplog.text.count("'embed' shares its weight with 'head'") == 1


# ---- a bug of torch


class Normed(nn.Module):
    """A convolution, a group norm that is called as told, and a head."""

    def __init__(self, call: str, channels: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, channels, 3), nn.GroupNorm(2, channels)
        self.head = nn.Linear(channels, 3)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.norm(input=x) if self.call == "by keyword" else self.norm(x)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it after a graph break
@pytest.mark.parametrize("call", ["", "by keyword", "compiled"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_group_norm_after_a_prefix_has_its_true_gradient(channels_last: bool, call: str) -> None:
    """Torch's CPU backward of GroupNorm reads memory that is not its own for such an input, and the process dies."""
    torch.manual_seed(0)
    model, x, y = Normed(call), torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 2, 0])
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gp = AdaGP(model, optimizer, schedules.prefix(model, "conv", schedules.fixed(1, 0, "zero")))
    wanted = true_gradients(model, x, y)
    network = torch.compile(model, backend="eager") if call == "compiled" else model
    gp.step(lambda: loss_of(network, x, y))  # shows the order
    with gp.batch() as batch:
        batch.backward(loss_of(network, x, y))
    assert not model.conv.weight.grad.any()
    for name in ("norm.weight", "norm.bias", "head.weight"):
        torch.testing.assert_close(model.get_parameter(name).grad, wanted[name])
    gp.remove()
    assert not model.norm._forward_pre_hooks
