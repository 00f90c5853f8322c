import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

from adagp.cli import app
from adagp.data import Text, Vocabulary
from adagp.report import comparison_table, seeds_table, write_report
from adagp.training import Recipe, RecipeError, Run, RunFolder, RunFolderError, Settings, compare, train
from adagp.training.run.world import World
from adagp.training.tasks.next_token import WORST_PERPLEXITY
from tests.ranks import on_ranks
from tests.training.tasks.making import counting

CPU = torch.device("cpu")
SIZES = {"context": 8, "layers": 1, "width": 32, "heads": 2}


def numbers(lines: int, seed: int) -> str:
    return "".join(f"{source}, {target}.\n" for source, target in counting(lines, seed))


@pytest.fixture(scope="module")
def text() -> Text:
    return Text("toy", numbers(60, 0), "", numbers(9, 1))


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        model="gpt",
        sizes=SIZES,
        data="text-file",  # what the recipe names; the tests hand over their own
        vocabulary=300,
        method="adagp",
        epochs=2,
        batch_size=8,
        optimizer="adam",
        lr=5e-3,
        weight_decay=0.0,
        lr_warmup=0.1,
    )


def finish(run: Run) -> Run:
    while not run.finished:
        while not run.epoch_complete:
            run.step()
        run.finish_epoch()
    return run


def test_a_gpt_learns_what_follows(recipe: Recipe, text: Text) -> None:
    run = finish(Run(recipe.replace(method="bp", epochs=8, lr=0.02), text))
    assert (run.metric.name, run.metric.lower_is_better) == ("perplexity", True)
    assert run.scores[0] > 10 > 6 > run.scores[-1]
    assert run.records[-1].metrics["token_accuracy"] > 0.3


def test_the_figures_are_those_of_their_definitions(recipe: Recipe, text: Text) -> None:
    """Token by token, in sequences cut by hand, without padding."""
    run = finish(Run(recipe.replace(method="bp", epochs=1), text))
    vocabulary = Vocabulary.build([text.train], 300)
    tokens = vocabulary.encode(text.test)
    losses, right = [], []
    model = run.model.eval()
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 8):
            seen, wanted = torch.tensor(tokens[start : start + 8]), torch.tensor(tokens[start + 1 : start + 9])
            logits = model(seen[None, : len(wanted)])[0]
            losses += functional.cross_entropy(logits, wanted, reduction="none").tolist()
            right += (logits.argmax(1) == wanted).tolist()
    assert (len(tokens) - 1) % 8, "the last sequence is to be a short one"
    assert len(losses) == len(tokens) - 1
    last = run.records[-1]
    assert last.test_loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert last.metrics["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    read = len(text.test.encode()) - len(vocabulary.decode_bytes(tokens[:1]))
    assert last.metrics["bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / read, rel=1e-5)
    assert last.metrics["token_accuracy"] == pytest.approx(sum(right) / len(right))


def test_smoothing_is_for_training_only(recipe: Recipe, text: Text) -> None:
    plain, smooth = Run(recipe, text), Run(recipe.replace(label_smoothing=0.5), text)
    batch = next(plain.task.epoch(0, 0))
    model = plain.model.eval().requires_grad_(False)
    expected = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), label_smoothing=0.5)
    assert smooth.task.loss(model, batch, CPU).item() == pytest.approx(expected.item())
    assert smooth.task.evaluate(model, CPU, last=True) == plain.task.evaluate(model, CPU, last=True)


@pytest.mark.parametrize(("method", "at"), [("adagp", 5), ("adagp", 17), ("progressive", 7), ("growing", 9)])
def test_a_run_continues_bit_for_bit(recipe: Recipe, text: Text, method: str, at: int) -> None:
    recipe = recipe.replace(method=method, warmup_epochs=0.3, rung_epochs=0.2)
    whole, first = finish(Run(recipe, text)), Run(recipe, text)
    assert whole.total_steps > at
    while first.step_index < at:
        first.finish_epoch() if first.epoch_complete else first.step()
    second = Run(recipe, text)
    second.load_state_dict(first.state_dict())
    finish(second)
    mine, theirs = second.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert second.scores == whole.scores
    if method == "adagp":
        assert second.records[-1].counts["predicted"] > 0


def test_coarse_batches_have_a_shorter_context(recipe: Recipe, text: Text) -> None:
    run = Run(recipe.replace(method="progressive"), text)
    lengths = []
    run.model.embedding.register_forward_hook(lambda module, inputs, output: lengths.append(output.shape[1]))
    while not run.epoch_complete:
        run.step()
    run.model.embedding._forward_hooks.clear()
    finish(run)
    assert lengths[0] == 4
    assert {record.batches["COARSE"] > 0 for record in run.records} == {True}
    assert sum(record.batches["BP"] for record in run.records) > 0
    batch = next(run.task.epoch(0, 0))
    model = run.model.eval()
    short = functional.cross_entropy(model(batch[:, :4]).flatten(0, 1), batch[:, 1:5].flatten())
    assert run.task.loss(model, batch, CPU, 0.5).item() == pytest.approx(short.item())


def test_the_vocabulary_stays_with_the_run(tmp_path: Path, recipe: Recipe, text: Text) -> None:
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe.replace(epochs=1), text)
    folder.prepare(run, resume=False)
    result = train(run, folder)
    assert result["metric"] == "perplexity"
    assert result["best_test_perplexity"] == min(result["scores"])
    kept = Vocabulary.load(folder.path / "vocabulary.json")
    assert len(kept) == run.model.get_parameter("output.weight").shape[0]
    changed = Text("toy", "something else " * 400, "", text.test)
    with pytest.raises(RunFolderError, match=r"vocabulary\.json.*text has changed.*new folder"):
        folder.prepare(Run(recipe.replace(epochs=1), changed), resume=True)


def test_methods_are_compared_by_perplexity(tmp_path: Path, recipe: Recipe, text: Text) -> None:
    settings = Settings(recipe.replace(method="bp"), ("bp", "adagp", "skip", "short-bp"), (0,))
    found = compare(settings, text, tmp_path, device=CPU)
    assert (found.metric.name, found.items) == ("perplexity", "sequences")
    assert comparison_table(found).columns[1] == "perplexity"
    assert any("test sequences, last epoch; lower is better" in note for note in comparison_table(found).notes)
    assert seeds_table(found).columns[2:6] == ("perplexity", "best", "bits per byte", "token accuracy %")
    assert seeds_table(found).notes[0].startswith("best: lowest of all epochs")
    for result in found.methods:
        assert all(seed.best_score == min(seed.scores) for seed in result.seeds)
    assert "Lower is better for perplexity." in found.verdict
    png, _ = write_report(found, tmp_path)
    assert png.stat().st_size > 10_000


def test_a_diverged_run_has_a_finite_figure(recipe: Recipe, text: Text) -> None:
    run = Run(recipe, text)
    with torch.no_grad():
        run.model.output.weight.fill_(math.nan)
    found = run.evaluate()
    assert math.isnan(found.loss)
    assert found.metrics["perplexity"] == pytest.approx(WORST_PERPLEXITY)
    assert math.isfinite(found.metrics["bits_per_byte"])


@pytest.mark.parametrize(
    ("train", "test", "changes", "message"),
    [
        ("abc", "abcdef", {}, r"training text of 'mine' has \d tokens, .*sizes.context = 8.*: lower sizes.context"),
        (50 * "abcdefgh ", "a", {}, r"test text of 'mine' has 1 tokens"),
        (10 * "abcdefgh ", "abc", {"batch_size": 512}, r"batch_size = 512 is larger than the \d+ training sequences"),
    ],
)
def test_text_that_is_too_short_is_refused(
    recipe: Recipe, train: str, test: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        Run(recipe.replace(**changes), Text("mine", train, "", test))


def test_the_task_decides_what_fits() -> None:
    with pytest.raises(RecipeError, match=r"'gpt' is for next-token, but data 'digits'.*multi30k-en, text-file"):
        Recipe(model="gpt", data="digits")
    with pytest.raises(RecipeError, match=r"sizes.vocabulary is not a size of gpt that can be set: .*context"):
        Recipe(model="gpt", data="text-file", sizes={"vocabulary": 9})


def _trained(rank: int, count: int, values: dict[str, Any], text: Text) -> list[torch.Tensor]:
    recipe = Recipe.from_mapping(values)
    run = finish(Run(recipe, text, world=World(rank, count)))
    return [parameter.detach().clone() for parameter in run.model.parameters()]


@pytest.mark.parametrize("method", ["adagp", "progressive"])
def test_two_ranks_share_a_batch_and_stay_equal(recipe: Recipe, text: Text, method: str) -> None:
    recipe = recipe.replace(method=method, epochs=1, warmup_epochs=0.3, rung_epochs=0.2, train_limit=64)
    first, second = on_ranks(2, _trained, recipe.to_dict(), text)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    seen = [run_share.tolist() for run_share in _shares(recipe, text)]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2])


def _shares(recipe: Recipe, text: Text) -> list[torch.Tensor]:
    task = Run(recipe, text).task
    batch = next(task.epoch(0, 0))
    return [task.share(batch, 0, 2), task.share(batch, 1, 2), batch]


def told_saving(text: str) -> float:
    """The share of the work of full size that the command line promised before training."""
    found = re.search(r"(\d+) % of the work of full size, about ([\d.]+) x as fast", " ".join(text.split()))
    assert found is not None, text
    assert float(found[2]) == pytest.approx(100 / int(found[1]), rel=0.02)
    return int(found[1]) / 100


def test_any_text_file_trains_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(numbers(80, random.Random(0).randrange(9)))
    options = ["--model", "gpt", "--data", "text-file", "--data-root", str(path), "--epochs", "1", "--batch-size", "8"]
    sizes = [part for name, size in SIZES.items() for part in ("--set", f"sizes.{name}={size}")]
    sizes += ["--set", "vocabulary=259", "--set", "form=tied"]  # characters, and one weight for both
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", *options, *sizes, "--out", str(out), "--method", "progressive"])
    assert done.exit_code == 0, done.output
    assert "contexts at 0.5 of their size for 60 %" in done.stderr
    assert 0.65 < told_saving(done.stderr) < 0.75  # the work of a shorter context is proportional to it
    assert "perplexity" in done.stdout
    assert json.loads((out / "result.json").read_text())["test_perplexity"] < 259
    ladder = CliRunner().invoke(app, ["train", *options, *sizes, "--out", f"{out}-2", "--method", "coarse"])
    assert 0.5 < told_saving(ladder.stderr) < 1
    path.write_bytes(b"")
    failed = CliRunner().invoke(app, ["train", *options, *sizes])
    assert failed.exit_code != 0
    assert "book.txt: has no text; give a file of plain text" in failed.stderr
