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
    work = batches(4)
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
    assert schedule.sources == {"backprop", "zero"}
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
    with pytest.raises(ValueError, match=r"until='0' has no layer up to its end; the layers are: 3, 7, 9"):
        schedules.prefix(build(), "0", ladder, exclude="^0$")
    with pytest.raises(ValueError, match=r"until='9' leaves no layer after the prefix: use the ladder itself"):
        schedules.prefix(build(), "9", ladder)


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
