"""The paper's tables: the right runs, the right arithmetic, through the command, resumed."""

import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from adagp import models, schedules
from adagp.cli import app
from adagp.reproduce import approximation
from adagp.training import Interrupted, RecipeError

SMALL = ["--data", "digits", "--epochs", "1", "--train-limit", "64", "--test-limit", "50", "--batch-size", "32"]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words])


def result(accuracy: float, seconds: float) -> dict[str, Any]:
    return {"test_accuracy": accuracy, "train_seconds": seconds, "diverged": None}


def test_tables_three_and_five_share_their_runs() -> None:
    found = approximation.recipes([3, 5], [0], epochs=4)
    assert len(found) == 2 + 3 * 3
    assert {recipe.model for recipe in found.values()} == {"resnet20", "resnet14"}
    assert len(approximation.recipes([2, 3, 4, 5], [0, 1])) == 2 * (4 + 11 + 4)
    for label, recipe in found.items():
        assert recipe.optimizer == "adam"
        assert recipe.lr_schedule == "exponential"
        assert label == approximation.label(recipe.model, recipe.method, recipe.schedule, recipe.seed)


@pytest.mark.parametrize("tables", [(), (1,), (3, 6)])
def test_unknown_tables_are_refused(tables: tuple[int, ...]) -> None:
    with pytest.raises(RecipeError, match="choose from 2, 3, 4, 5"):
        approximation.recipes(tables, [0])


@pytest.mark.parametrize(("network", "approximated"), [("resnet20", 5), ("vgg19", 4)])
def test_schedule_one_approximates_as_many_layers_as_the_paper_says(network: str, approximated: int) -> None:
    layers = schedules.layer_names(models.build(network), "Conv")
    assert len(schedules.approximation("1", layers, "zero")(0).overrides) == approximated


def test_the_two_layer_schedule_takes_the_second_convolution_every_other_batch() -> None:
    layers = schedules.layer_names(models.build("cnn2"), "Conv")
    assert len(layers) == 2
    plan = schedules.approximation("second-layer", layers, "random")
    assert [dict(plan(step).overrides) for step in range(4)] == [{}, {layers[1]: "random"}] * 2


def test_speed_ups_and_losses_are_computed_from_all_seeds() -> None:
    label = approximation.label
    results = {
        label("resnet20", "bp", None, 0): result(0.90, 100.0),
        label("resnet20", "bp", None, 1): result(0.92, 100.0),
        label("resnet14", "bp", None, 0): result(0.80, 50.0),
        label("resnet14", "bp", None, 1): result(0.80, 50.0),
    }
    for seed, source in ((seed, source) for seed in (0, 1) for source in approximation.SOURCES):
        results[label("resnet20", source, "1", seed)] = result(0.89, 80.0)
    (table,) = approximation.accuracy_tables([3], results, [0, 1], "a scale")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["zero"] == ("89.00", "+25.0", "+7.1", "+2.00", "+1.50")
    assert rows["resnet14, full gradient"] == ("80.00", "+100.0", "+22.0", "+11.00", "+1.00")
    assert "a scale; 2 seeds" in table.notes[0]
    results[label("resnet20", "zero", "1", 1)]["diverged"] = "at step 3"
    (table,) = approximation.accuracy_tables([3], results, [0, 1], "a scale")
    assert {row[0]: row[1:3] for row in table.rows}["zero"] == ("89.00 (1 diverged)", "-")


def test_the_accuracy_command_writes_all_tables_and_resumes_without_training_again(tmp_path: Path) -> None:
    out = tmp_path / "study"
    words = ["approximation-accuracy", "--tables", "2", *SMALL, "--out", str(out), "--json"]
    first = call(*words)
    assert first.exit_code == 0, first.output
    tables = json.loads(first.stdout)["tables"]
    assert [row[0] for row in tables[0]["rows"]] == ["full gradient", "zero", "random", "approximated (topk)"]
    refused = call(*words)
    assert refused.exit_code != 0
    assert "--resume" in refused.stderr
    shutil.rmtree(out / "cnn2-zero-schedule-second-layer-seed-0")
    picture = tmp_path / "figure5.svg"
    second = call(*words, "--resume", "--picture", str(picture))
    assert second.exit_code == 0, second.output
    drawn = picture.read_text()
    assert "Figure 5: cnn2, schedule second-layer" in drawn
    for up in ("training loss", "test accuracy %", *approximation.PAPER_NAMES.values()):
        assert up in drawn
    before, after = json.loads(first.stdout)["runs"], json.loads(second.stdout)["runs"]
    again = "cnn2 zero schedule second-layer seed 0"
    assert after[again]["test_accuracy"] == before[again]["test_accuracy"]  # trained anew, from the same seed
    assert all(after[name] == before[name] for name in before if name != again)
    assert json.loads((out / "tables.json").read_text())["tables"] == json.loads(second.stdout)["tables"]


def test_the_line_printed_after_an_interrupt_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **named: Any) -> None:
        raise Interrupted(signal.SIGINT)

    words = ["approximation-accuracy", "--tables", "2", *SMALL, "--threads", "1", "--out", str(tmp_path / "s")]
    monkeypatch.setattr("adagp.training.comparison.run_all.run_all", interrupted)
    done = call(*words)
    assert done.exit_code == 130
    again = shlex.split(done.stderr.splitlines()[-1])
    monkeypatch.undo()
    resumed = call(*again[2:])
    assert resumed.exit_code == 0, resumed.output
    (recipe,) = {
        json.dumps({**json.loads(file.read_text()), "method": "", "schedule": ""})
        for file in (tmp_path / "s").glob("*/recipe.json")
    }
    assert json.loads(recipe) | {"batch_size": 32, "threads": 1, "train_limit": 64, "data": "digits"} == json.loads(
        recipe
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["approximation-kernel", "--layout", "rows"], "unknown layout 'rows'"),
        (["approximation-accuracy", "--tables", "three"], "tables = 'three' is not a list of whole numbers"),
        (["approximation-accuracy", "--tables", "7"], "choose from 2, 3, 4, 5"),
        (["approximation-accuracy", "--tables", "3", "--data", "cifar10", "--data-root", "."], "cifar10"),
    ],
)
def test_bad_input(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    assert done.exit_code != 0
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
