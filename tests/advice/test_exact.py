import pytest
import torch
from torch import nn

from adagp.advice import exact
from adagp.advice.exact import CHANNELS_LAST, FOREACH, FUSED, exact_options
from adagp.advice.subject import Subject, build_subject
from tests.nets import batches, build, equal_parameters, loss_of, sgd


def subject(model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None) -> Subject:
    model = build() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    return build_subject(model, optimizer, lambda batch: loss_of(model, *batch), batches(2), lambda: 0.0)


@pytest.mark.parametrize("trained", [0, 2])
@pytest.mark.parametrize("name", [CHANNELS_LAST, FUSED, FOREACH, "1 thread"])
def test_an_option_trains_as_without_it(name: str, trained: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact up to rounding, for the weights of the option itself; what it is measured beside stays untouched."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    plain, tried = subject(), subject()
    for _ in range(trained):
        plain.step()
        tried.step()
    option = next(one for one in exact_options(tried) if one.name == name)
    monkeypatch.undo()
    before = {key: value.clone() for key, value in tried.model.state_dict().items()}
    for _ in range(2):
        plain.step()
        with option.ready():
            tried.step()
            inside = {key: value.clone() for key, value in tried.model.state_dict().items()}
    for key, value in plain.model.state_dict().items():
        assert torch.allclose(value, inside[key], atol=1e-5), key
    weights = [key for key in before if key.endswith("weight") and before[key].dim() == 4]
    if name == CHANNELS_LAST:
        assert all(torch.equal(before[key], tried.model.state_dict()[key]) for key in weights)
        assert tried.model[0].weight.is_contiguous()
    assert tried.optimizer.param_groups[0]["fused"] is None


def test_channels_last_reaches_images_and_weights() -> None:
    tried, seen = subject(), []
    tried.model[0].register_forward_pre_hook(
        lambda module, inputs: seen.append(
            (inputs[0].is_contiguous(memory_format=torch.channels_last), module.weight.is_contiguous())
        )
    )
    option = next(one for one in exact_options(tried) if one.name == CHANNELS_LAST)
    tried.step()
    with option.ready():
        tried.step()
    assert seen == [(False, True), (True, False)]


def names(one: Subject) -> set[str]:
    return {option.name for option in exact_options(one)}


def test_only_what_is_not_used_yet_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    used = subject(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
    assert not names(used) & {CHANNELS_LAST, FUSED}
    linear = nn.Linear(2, 2)
    assert CHANNELS_LAST not in names(subject(linear, torch.optim.Adadelta(linear.parameters())))
    assert FUSED not in names(subject(linear, torch.optim.Adadelta(linear.parameters())))
    monkeypatch.setattr(exact, "available_cpus", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert {"1 thread", "8 threads"} <= names(subject())
    assert "4 threads" not in names(subject())


def written(line: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """What a line gives where a user puts it after their own."""
    names = {"torch": torch, "model": model, "optimizer": optimizer}
    exec(line, names)
    found = names["optimizer"]
    assert isinstance(found, torch.optim.Optimizer)
    return found


@pytest.mark.parametrize("flag", [FUSED, FOREACH])
def test_the_line_for_an_optimizer_builds_the_same_one_with_the_flag(flag: str) -> None:
    model = build()
    whole = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    half = len(list(model.parameters())) // 2
    parts = list(model.parameters())
    groups = torch.optim.SGD([{"params": parts[:half], "lr": 0.3}, {"params": parts[half:]}], lr=0.1, foreach=False)
    for optimizer in (whole, groups):
        (option,) = [one for one in exact_options(subject(model, optimizer)) if one.name == flag]
        found = written(option.code[0], model, optimizer)
        assert type(found) is type(optimizer)
        for old, new in zip(optimizer.param_groups, found.param_groups, strict=True):
            others = {"fused": None, "foreach": None}
            assert {**old, **others} == {**new, **others}
            assert new[flag.split()[0]] is True
    line = next(one for one in exact_options(subject(model, whole)) if one.name == flag).code[0]
    assert line == (
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.0003, betas=(0.9, 0.95), weight_decay=0.1, "
        f"{flag.split()[0]}=True)"
    )


def test_ranks_on_one_machine_share_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = exact.available_cpus()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert exact.available_cpus() == max(alone // 2, 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert exact.available_cpus() == 1


def test_two_ways_of_one_thing_exclude_each_other() -> None:
    found = {option.name: option for option in exact_options(subject())}
    assert FOREACH in found[FUSED].excludes
    assert FUSED in found[FOREACH].excludes
    assert not found[CHANNELS_LAST].excludes


def test_options_can_be_nested() -> None:
    tried, plain = subject(), subject()
    found = {option.name: option for option in exact_options(tried)}
    plain.step()
    with found[CHANNELS_LAST].ready(), found[FUSED].ready():
        tried.step()
        inside = {key: value.clone() for key, value in tried.model.state_dict().items()}
    assert all(torch.allclose(value, inside[key], atol=1e-5) for key, value in plain.model.state_dict().items())
    assert not equal_parameters(plain.model, build())
