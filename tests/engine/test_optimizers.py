"""Several optimizers in one AdaGP, such as Muon for the matrices and AdamW for the rest."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from adagp import AdaGP, Phase, Plan, schedules
from tests.nets import batches, build, equal_parameters, loss_of, sgd

MIXED = lambda step: Plan(Phase.BP, "backprop", {"7": "predicted", "9": "last"} if step % 2 else {})  # noqa: E731


def muon_and_adamw(model: nn.Module) -> list[Optimizer]:
    parameters = list(model.parameters())
    matrices = [part for part in parameters if part.dim() == 2]
    rest = [part for part in parameters if part.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=1e-3)]


def split_sgd(model: nn.Module) -> list[Optimizer]:
    parameters = list(model.parameters())
    return [torch.optim.SGD(part, lr=0.05, momentum=0.9) for part in (parameters[:3], parameters[3:])]


def run(model: nn.Module, optimizer: Any, schedule: Any, steps: int = 8, **options: Any) -> AdaGP:
    scaler = options.pop("scaler", None)
    gp = AdaGP(model, optimizer, schedule, **options)
    for x, y in batches(steps):
        gp.step(lambda x=x, y=y: loss_of(model, x, y), scaler=scaler)
    return gp


def test_muon_and_adamw_under_backprop_are_the_plain_loop() -> None:
    model, plain = build(), build()
    run(model, muon_and_adamw(model), schedules.always_backprop())
    optimizers = muon_and_adamw(plain)
    for x, y in batches(8):
        loss_of(plain, x, y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert equal_parameters(model, plain)


@pytest.mark.parametrize("schedule", [schedules.fixed(1, 1), MIXED], ids=["gp", "mixed"])
@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_parts_of_one_optimizer_train_like_the_whole(schedule: Any, immediate: bool, scaled: bool) -> None:
    """SGD treats every parameter by itself: two of them are one, momentum included."""
    one, two = build(), build()
    options: dict[str, Any] = {"immediate": immediate}
    runs = []
    for model, optimizer in ((one, sgd(one)), (two, split_sgd(two))):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        runs.append(run(model, optimizer, schedule, scaler=scaler, **options))
    assert equal_parameters(one, two)
    assert runs[0].counts() == runs[1].counts()


def test_an_optimizer_without_a_true_gradient_steps_beside_a_scaler() -> None:
    """A GradScaler asserts where an optimizer has no gradient that it unscaled."""
    one, two = build(), build()
    for model, scaler in ((one, None), (two, torch.amp.GradScaler("cpu", init_scale=1024.0))):
        first = [*model[:7].parameters()]
        second = [*model[7:].parameters()]
        optimizers = [torch.optim.SGD(part, lr=0.05) for part in (first, second)]
        run(model, optimizers, lambda step: Plan(Phase.BP, "backprop", {"7": "mean", "9": "mean"}), scaler=scaler)
    assert equal_parameters(one, two)


def test_only_the_layers_own_optimizer_steps_at_once() -> None:
    model = build()
    optimizers = muon_and_adamw(model)
    stepped: list[int] = []
    for place, optimizer in enumerate(optimizers):
        optimizer.register_step_pre_hook(lambda *_, place=place: stepped.append(place))
    gp = AdaGP(model, optimizers, schedules.fixed(1, 0), immediate=True)
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y))
    # The two convolutions; of each linear layer the matrix and the bias; then the step at the end.
    assert stepped == [1, 1, 0, 1, 0, 1, 0, 1]


def test_a_skipped_parameter_keeps_its_momentum_in_every_optimizer() -> None:
    model = build()
    optimizers = muon_and_adamw(model)
    plans = [Plan(Phase.BP, "backprop"), Plan(Phase.GP, "skip")]
    gp = run(model, optimizers, lambda step: plans[step > 1])
    for optimizer in optimizers:
        for state in optimizer.state.values():
            assert float(state.get("step", 2)) == 2
    assert gp.counts()["skip"] == 6 * 4


def test_resume_is_bit_exact() -> None:
    def resumed(stop: int) -> nn.Module:
        model = build()
        optimizers = muon_and_adamw(model)
        gp = AdaGP(model, optimizers, schedules.ladder(2, 1, 1))
        for step, (x, y) in enumerate(batches(9)):
            if step == stop:
                saved = [one.state_dict() for one in (model, *optimizers, gp)]  # type: ignore[attr-defined]
                torch.manual_seed(5)
                model = build(seed=3)
                optimizers = muon_and_adamw(model)
                gp = AdaGP(model, optimizers, schedules.ladder(2, 1, 1))
                for one, state in zip((model, *optimizers, gp), saved, strict=True):
                    one.load_state_dict(state)  # type: ignore[attr-defined]
            gp.step(lambda x=x, y=y, model=model: loss_of(model, x, y))
        return model

    assert equal_parameters(resumed(stop=-1), resumed(stop=5))


def test_what_cannot_work_is_refused() -> None:
    model = build()
    whole, (first, second) = sgd(model), split_sgd(model)
    with pytest.raises(ValueError, match=r"parameter '0\.weight' is held by two optimizers"):
        AdaGP(model, [first, second, whole], schedules.fixed(1, 1))
    rest = torch.optim.LBFGS(second.param_groups[0]["params"])
    with pytest.raises(ValueError, match=r"LBFGS.*only optimizer"):
        AdaGP(model, [first, rest], schedules.fixed(1, 1))
    with pytest.raises(ValueError, match="give at least one optimizer"):
        AdaGP(model, [], schedules.fixed(1, 1))
    gp = AdaGP(model, [first, second], schedules.fixed(1, 1))
    assert gp.optimizers == (first, second)
    with pytest.raises(AttributeError, match=r"has 2 optimizers: use gp\.optimizers"):
        _ = gp.optimizer
