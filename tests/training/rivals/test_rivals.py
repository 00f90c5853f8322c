"""Every rival against what it says it does, and killed in the middle of an epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.data import DataSet
from adagp.training import Recipe, RecipeError, Run, RunFolder
from adagp.training.rivals import RIVALS, freezing, pruning, selective
from adagp.training.rivals.rival import TrainingBatch
from adagp.training.run import checkpoint
from adagp.training.run.world import World


@pytest.fixture
def plain(recipe: Recipe) -> Recipe:
    return recipe.replace(method="bp", threads=1)


def advance(run: Run, steps: int | None = None) -> Run:
    """Train some batches, or all."""
    while not run.finished and steps != 0:
        if run.epoch_complete:
            run.finish_epoch()
            continue
        run.step()
        steps = None if steps is None else steps - 1
    return run


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("stop", [7, 25])
def test_a_resumed_run_is_the_one_that_was_not_interrupted(
    tmp_path: Path, plain: Recipe, digits: DataSet, method: str, stop: int
) -> None:
    recipe = plain.replace(method=method)
    whole = advance(Run(recipe, digits))
    stopped = advance(Run(recipe, digits), stop)
    checkpoint.save(tmp_path / "checkpoint.pt", stopped.state_dict())
    resumed = Run(recipe, digits)
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.pt"))
    advance(resumed)
    assert same(whole.model.state_dict(), resumed.model.state_dict())
    assert same(whole.weights(), resumed.weights())
    assert whole.scores == resumed.scores


def in_force(method: str, progress: float) -> float:
    """What a rival saves at a point of the run, as a number of its own kind."""
    if method == "freezing":
        return max((share for start, share in freezing.STEPS if progress >= start), default=0.0)
    spans = {"selective": (selective.START, selective.END), "pruning": (0.0, pruning.END)}
    start, end = spans.get(method, (0.0, 0.0))
    return float(start <= progress < end)


@pytest.mark.parametrize("method", RIVALS)
def test_the_stages_that_are_timed_stand_for_the_whole_run(method: str) -> None:
    """The cost of a batch is a mean over stages: it must be the mean over the run."""
    stages = RIVALS[method].stages
    assert sum(share for _, share in stages) == pytest.approx(1)
    over_run = sum(in_force(method, (place + 0.5) / 10_000) for place in range(10_000)) / 10_000
    assert sum(share * in_force(method, progress) for progress, share in stages) == pytest.approx(over_run, abs=1e-3)


def test_rivals_know_one_process(plain: Recipe, digits: DataSet) -> None:
    with pytest.raises(RecipeError, match="method pruning trains in one process"):
        Run(plain.replace(method="pruning"), digits, world=World(rank=0, size=2))


def test_methods_without_a_rival_keep_the_form_of_their_checkpoints(plain: Recipe, digits: DataSet) -> None:
    assert "rival" not in Run(plain, digits).state_dict()


def test_a_smaller_batch_is_the_recipe_with_that_batch(plain: Recipe, digits: DataSet) -> None:
    half, rival = plain.replace(batch_size=16, steps=20), plain.replace(method="small-batch", steps=20)
    assert same(advance(Run(half, digits)).model.state_dict(), advance(Run(rival, digits)).model.state_dict())


def test_a_smaller_size_is_trained_and_tested(plain: Recipe, digits: DataSet) -> None:
    run = Run(plain.replace(method="small-size", model="resnet8"), digits)
    seen: set[int] = set()
    run.model.register_forward_pre_hook(lambda module, given: seen.add(given[0].shape[-1]))
    run.step()
    run.evaluate()
    assert seen == {digits.size // 2}


def test_selective_trains_on_half_of_the_batch_between_its_ends(plain: Recipe, digits: DataSet) -> None:
    run = Run(plain.replace(method="selective"), digits)
    sizes: list[list[tuple[int, bool]]] = []
    run.model.register_forward_pre_hook(
        lambda module, given: sizes[-1].append((len(given[0]), torch.is_grad_enabled()))
    )
    for step in range(run.total_steps):
        sizes.append([])
        if run.epoch_complete:
            run.finish_epoch()
            sizes[-1] = []
        run.step()
        ranked = selective.START <= step / run.total_steps < selective.END
        assert sizes[-1] == ([(32, False), (16, True)] if ranked else [(32, True)])


def test_selective_prefers_large_losses(plain: Recipe, digits: DataSet) -> None:
    run = Run(plain.replace(method="selective"), digits)
    losses = torch.arange(32.0)
    kept = torch.zeros(32)
    task = run.task
    taken: list[torch.Tensor] = []
    object.__setattr__(task, "sample_losses", lambda *_: losses)
    object.__setattr__(task, "take", lambda batch, places: taken.append(places))
    for _ in range(200):
        run._rival.loss(TrainingBatch(task, run.model, None, run.device, 1.0, 0, 0, 0.7))
        kept[taken[-1]] += 1
    assert kept[16:].sum() > 1.4 * kept[:16].sum()
    assert kept.sum() == 200 * 16


def test_pruning_is_right_on_average_and_leaves_out_a_quarter() -> None:
    rival = pruning.Pruning()
    rival._seed, rival._epoch = 0, -1
    rival._scores = torch.arange(100.0)
    total = torch.zeros(100)
    for epoch in range(400):
        rival._prune(epoch)
        assert 24 <= int((rival._factors == 0).sum()) <= 25
        total += rival._factors
    mean = total / 400
    assert float(mean.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(mean[51:], torch.ones(49))  # what is hard is always there, once
    assert float((mean[:49] - 1).abs().max()) < 0.3


def test_pruning_remembers_the_losses_of_the_samples_it_saw(plain: Recipe, digits: DataSet) -> None:
    run = Run(plain.replace(method="pruning"), digits)
    before = run._rival.state_dict()["scores"].clone()
    run.step()
    state = run._rival.state_dict()
    moved = (state["scores"] != before).nonzero().flatten()
    members = run.task.members(0, 0)  # type: ignore[attr-defined]
    assert set(moved.tolist()) <= set(members.tolist())
    assert 16 <= len(moved) <= 31
    assert len(state["scores"]) == 480


def test_freezing_stops_early_layers_in_steps(plain: Recipe, digits: DataSet) -> None:
    run = Run(plain.replace(method="freezing", model="resnet8"), digits)
    holders = [module for module in run.model.modules() if list(module.parameters(recurse=False))]
    first, last = holders[0].weight, holders[-1].weight
    for step in range(run.total_steps):
        if run.epoch_complete:
            run.finish_epoch()
        before, head = first.detach().clone(), last.detach().clone()
        run.step()
        share = max((share for start, share in freezing.STEPS if step / run.total_steps >= start), default=0)
        frozen = [module for module in holders if not next(module.parameters(recurse=False)).requires_grad]
        assert frozen == holders[: int(share * len(holders))]
        assert torch.equal(first, before) == bool(frozen)  # type: ignore[arg-type]
        assert not torch.equal(last, head)  # type: ignore[arg-type]


def test_averaging_evaluates_and_keeps_the_mean(tmp_path: Path, plain: Recipe, digits: DataSet) -> None:
    """With a span of 45 of 900 batches: of the first three weights it is the plain mean."""
    run = Run(plain.replace(method="averaging", epochs=60), digits)
    name = next(name for name, _ in run.model.named_parameters())
    seen = []
    for _ in range(3):
        run.step()
        seen.append(run.model.get_parameter(name).detach().clone())
    assert torch.allclose(run.weights()[name], torch.stack(seen).mean(0), atol=1e-6)
    assert torch.equal(run.model.state_dict()[name], seen[-1])
    evaluated = run.evaluate()
    assert torch.equal(run.model.state_dict()[name], seen[-1])  # training goes on from its own weights
    averaged = run.weights()
    run.model.load_state_dict(averaged)
    run.model.eval()
    with torch.no_grad():
        assert run.task.evaluate(run.model, run.device, last=False) == evaluated
    short, folder = Run(plain.replace(method="averaging", steps=10), digits), RunFolder(tmp_path / "short")
    folder.prepare(short, resume=False)
    advance(short)
    folder.save(short)
    kept = torch.load(tmp_path / "short" / "model.pt", weights_only=True)
    assert same(kept, short.weights())
