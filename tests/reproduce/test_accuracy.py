"""Tables 1 to 3 and figure 15 of the ADA-GP paper: the right runs and arithmetic, through the command, resumed."""

import csv
import io
import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from adagp import data, models
from adagp.cli import app
from adagp.data import Augment, DataSet, Split
from adagp.reproduce import accuracy, quality
from adagp.reproduce.accuracy import CELLS, Cell
from adagp.training import Interrupted, Recipe, RecipeError, RunFolderError, load_preset, preset_names
from tests.training.tasks.making import toy_objects, toy_text


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words])


def result(method: str, seconds: float, **figures: float) -> dict[str, Any]:
    gp = 50 if method == "adagp" else 0
    return {
        "method": method,
        "train_seconds": seconds,
        "diverged": None,
        "median_ms": {"BP": 100.0, "GP": 20.0},
        "batches": {"WARMUP": 0, "BP": 100 - gp, "GP": gp},
        **{f"test_{name}": value for name, value in figures.items()},
    }


def test_table_one_is_the_papers() -> None:
    """What its text says of the table, where the two agree (section 6.1.1)."""
    assert len(accuracy.PAPER_TABLE_1) == 13
    assert set(accuracy.PAPER_TABLE_1) <= set(models.names("classification"))
    gains = {
        first: {name: row[first + 1] - row[first] for name, row in accuracy.PAPER_TABLE_1.items()}
        for first in (0, 2, 4)
    }
    assert min(gains[0].values()) > 0
    assert max(gains[2].values()) == pytest.approx(2.15)
    assert sum(gains[4].values()) / 13 == pytest.approx(-0.3, abs=0.01)
    of_imagenet = [gains[4][name] for name in ("densenet161", "densenet201", "vgg13")]
    assert of_imagenet == pytest.approx([0.28, 0.04, 0.0])


@pytest.mark.parametrize("kind", accuracy.KINDS)
def test_every_cell_has_its_own_presets(kind: str) -> None:
    for cell in (cell for cells in CELLS.values() for cell in cells):
        preset = load_preset(f"{cell}-{kind}")
        assert (preset.recipe.model, preset.recipe.data) == (cell.model, cell.data)
        assert preset.about
        assert models.task(cell.model) == data.entry(cell.data).task


def test_the_papers_presets_are_the_papers() -> None:
    for name in preset_names():
        if not name.endswith("-paper"):
            continue
        recipe = load_preset(name).recipe
        assert recipe.lr_schedule == "plateau"
        if recipe.model == "yolo_v3":
            assert (recipe.lr, recipe.weight_decay) == (3e-5, 1e-4)
        else:
            assert (recipe.optimizer, recipe.lr, recipe.momentum) == ("sgd", 1e-3, 0.9)
    third = load_preset("approximation").recipe
    assert (third.optimizer, third.lr_schedule) == ("adam", "exponential")


def test_both_methods_follow_one_protocol() -> None:
    for cell in (cell for cells in CELLS.values() for cell in cells):
        found = accuracy.recipes(cell, "tuned", (0, 3), full=False, changes={"epochs": 7})
        assert len(found) == 4
        bp, adagp = (found[accuracy.label(cell, method, 3)] for method in accuracy.METHODS)
        assert bp.replace(method="adagp") == adagp
        assert bp.epochs == 7
        assert (bp.model, bp.data, bp.seed) == (cell.model, cell.data, 3)


def test_the_small_scale_keeps_the_papers_rate() -> None:
    for cell in CELLS[1]:
        tuned, paper = (
            accuracy.recipes(cell, kind, (0,), full=False, changes={})[accuracy.label(cell, "bp", 0)]
            for kind in ("tuned", "paper")
        )
        assert (tuned.lr, paper.lr) == (0.01, 1e-3)
        assert tuned.train_limit == paper.train_limit


def test_a_network_without_a_preset_takes_that_of_its_data() -> None:
    (cell,) = accuracy.parse_cells(1, "cifar10-densenet201")
    recipe = accuracy.recipes(cell, "paper", (0,), full=True, changes={})["cifar10-densenet201 bp seed 0"]
    assert recipe == load_preset("cifar10-vgg13-paper").recipe.replace(model="densenet201", method="bp")
    (cell,) = accuracy.parse_cells(1, "imagenet-resnet50")
    assert (
        accuracy.recipes(cell, "tuned", (0,), full=True, changes={})["imagenet-resnet50 bp seed 0"].network_form
        == "imagenet"
    )
    (cell,) = accuracy.parse_cells(3, "voc2012-yolo_v3")
    assert accuracy.recipes(cell, "tuned", (0,), full=False, changes={})["voc2012-yolo_v3 bp seed 0"].image_size == 96


@pytest.mark.parametrize(
    ("table", "text"), [(1, "cifar10"), (1, "mnist-vgg13"), (2, "multi30k-vgg13"), (1, "cifar10-vgg13,cifar10-vgg13")]
)
def test_unknown_cells_are_refused(table: int, text: str) -> None:
    with pytest.raises(RecipeError, match=rf"cells = '{text}': name each DATA-MODEL once"):
        accuracy.parse_cells(table, text)


def test_fields_that_would_mislabel_a_row_are_refused() -> None:
    with pytest.raises(RecipeError, match="model, seed: cannot be set"):
        accuracy.recipes(CELLS[1][0], "tuned", (0,), full=False, changes={"model": "cnn", "seed": 3})


def test_table_one_sets_ours_beside_the_papers() -> None:
    cell = Cell("cifar100", "resnet50")
    results = {
        accuracy.label(cell, method, seed): result(method, seconds, accuracy=share)
        for seed, method, seconds, share in (
            (0, "bp", 90.0, 0.70),
            (1, "bp", 110.0, 0.72),
            (0, "adagp", 80.0, 0.69),
            (1, "adagp", 80.0, 0.70),
        )
    }
    table = accuracy.table(1, [cell], results, (0, 1), ("a scale",))
    # By medians: 100 batches of 100 ms against 50 of them and 50 of 20 ms.
    expected = ("71.00", "69.50", "-1.50", "75.44", "75.73", "+0.29", "100", "80", "1.25", "1.67")
    assert table.rows == [("resnet50 cifar100", *expected)]
    assert table.notes[0] == "a scale"
    results[accuracy.label(cell, "adagp", 1)]["diverged"] = "at step 3"
    assert accuracy.table(1, [cell], results, (0, 1), ()).rows[0][-2:] == ("-", "-")


def test_tables_two_and_three_set_ours_beside_the_papers() -> None:
    cell = CELLS[2][0]
    figures = {"token_accuracy": 0.5, "loss": 2.0, "bleu": 20.0}
    results = {
        accuracy.label(cell, "bp", 0): result("bp", 100.0, **figures, beam_bleu=21.5),
        accuracy.label(cell, "adagp", 0): result("adagp", 80.0, **figures),
    }
    rows = accuracy.table(2, [cell], results, (0,), ()).rows
    assert rows[0] == ("bp", "50.00", "2.000", "20.00", "21.50", "100", "1.00", "1.00")
    assert rows[1][4:] == ("-", "80", "1.25", "1.67")
    assert rows[3] == ("paper's adagp", "52.14", "1.65", "33.40", "-", "-", "1.13", "-")
    cell = CELLS[3][0]
    results = {
        accuracy.label(cell, method, 0): result(method, 10.0, class_accuracy=0.4, map50=0.125, loss=30.0)
        for method in accuracy.METHODS
    }
    rows = accuracy.table(3, [cell], results, (0,), ()).rows
    assert rows[1] == ("adagp", "40.00", "12.50", "30.00", "10", "1.00", "1.67")
    assert rows[2] == ("paper's bp", "83.03", "46.85", "-", "-", "1.00", "-")


def small_data(name: str, folder: Path) -> Any:
    """Something small of the same form as the data of that name."""
    if name == "multi30k":
        return toy_text()
    if name == "voc2007":
        return toy_objects(folder)
    generator = torch.Generator().manual_seed(0)
    split = Split(
        torch.randint(0, 256, (48, 3, 32, 32), generator=generator, dtype=torch.uint8),
        torch.randint(0, 10, (48,), generator=generator),
    )
    return DataSet(name, split, split, 10, 3, 32, (0.5,) * 3, (0.2,) * 3, Augment(4))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load_any", lambda name, root: small_data(name, tmp_path))


SHORT = {
    1: [
        *("--cells", "cifar10-mobilenet_v2,cifar100-mobilenet_v2", "--set", "test_limit=8"),
        *("--set", "batch_size=4", "--set", "train_limit=8", "--set", "epochs=1"),
    ],
    2: ["--set", "sizes={width=16,heads=2,hidden=16,layers=1}", "--set", "vocabulary=300", "--set", "steps=6"],
    3: ["--set", "image_size=64", "--set", "train_limit=4", "--set", "batch_size=2", "--set", "steps=3"],
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("table", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_command_fills_its_table_and_resumes_without_training_again(tmp_path: Path, table: int) -> None:
    out = tmp_path / "out"
    words = [f"table{table}", *SHORT[table], "--threads", "1", "--out", str(out), "--json"]
    first = call(*words)
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    rows = list(csv.reader(io.StringIO((out / f"table{table}.csv").read_text())))
    assert rows == [found["tables"][0]["columns"], *found["tables"][0]["rows"]]
    assert (out / f"table{table}.md").read_text().count("\n|") == len(rows) + 1  # the rule below the headings
    with Image.open(out / f"table{table}.png") as picture:
        assert picture.width > 400
    assert "1 thread" in found["notes"][-1]
    refused = call(*words)
    assert refused.exit_code == 1
    assert "--resume" in refused.stderr

    name = next(name for name in found["runs"] if " adagp " in name)
    folder = next(out.glob(f"*/{name.replace(' ', '-')}"))
    shutil.rmtree(folder)
    second = call(*words, "--resume")
    assert second.exit_code == 0, second.output
    again = json.loads(second.stdout)["runs"]
    assert again[name]["scores"] == found["runs"][name]["scores"]  # trained anew, from the same seed
    assert all(again[other] == found["runs"][other] for other in again if other != name)


@pytest.mark.usefixtures("small")
def test_the_line_printed_after_an_interrupt_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **named: Any) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("adagp.training.comparison.run_all.run_all", interrupted)
    for words in (
        ["table2", *SHORT[2], "--full", "--kind", "paper", "--seeds", "4", "--out", str(tmp_path / "s")],
        ["predictor-quality", "--set", "epochs=1", "--method", "adagp-paper", "--threads", "1", "--out", "x"],
    ):
        done = call(*words)
        assert done.exit_code == 143
        again = shlex.split(done.stderr.splitlines()[-1])[2:]
        assert again[0] == words[0]
        assert "--resume" in again
        pairs = [" ".join(words[place : place + 2]) for place in range(1, len(words))]
        assert all(pair in " ".join(again) for pair in pairs if pair.startswith("--") and "--full" not in pair)
        assert ("--full" in again) == ("--full" in words)


@pytest.mark.usefixtures("small")
def test_predictor_quality_draws_every_layer(tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = [*SHORT[1][2:-2], "--set", "epochs=2", "--threads", "1"]
    done = call("predictor-quality", "--method", "adagp-paper", *short, "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found["epochs"]) == 2
    assert len(found["epochs"][0]) == 11  # VGG-13 has ten convolutions and one linear layer here
    (table,) = found["tables"]
    assert table["rows"][0][0] == "features.0"
    assert table["rows"][0][-1] == "0.31 %"
    assert table["rows"][10][-1] == "-"
    assert float(table["rows"][3][1]) == pytest.approx(found["epochs"][0]["features.10"]["mape"], rel=1e-2)
    rows = list(csv.DictReader(io.StringIO((out / "predictor-quality.csv").read_text())))
    assert len(rows) == 22
    assert (rows[14]["epoch"], rows[14]["layer"]) == ("2", "features.10")
    assert float(rows[14]["cosine"]) == pytest.approx(found["epochs"][1]["features.10"]["cosine"], rel=1e-4)
    with Image.open(out / "predictor-quality.png") as picture:
        assert picture.size == (1560, 1040)

    run = found["run"]
    drawn = call("predictor-quality", "--run", run, "--out", str(tmp_path / "again"), "--json")
    assert json.loads(drawn.stdout)["tables"] == found["tables"]
    refused = call("predictor-quality", "--run", run, "--set", "epochs=3", "--out", str(tmp_path / "again"))
    assert (refused.exit_code, "leave one of them out" in refused.stderr) == (2, True)


def test_a_run_without_predictions_has_no_quality_to_draw(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="give the folder of a run"):
        quality.of_run(tmp_path)
    (tmp_path / "quality.json").write_text('[{"epoch": 1, "layers": {}}]')
    with pytest.raises(RunFolderError, match="predicted nothing: give one by adagp, adagp-paper"):
        quality.of_run(tmp_path)
    assert isinstance(quality.recipe("adagp", {}), Recipe)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table1", "--cells", "cifar10-resnet20"], "name each DATA-MODEL once"),
        (["table1", "--kind", "best"], "kind = 'best': choose one of tuned, paper"),
        (["table2", "--set", "epochs=0"], "epochs = 0 is out of range"),
        (["table3", "--seeds", "a"], "not a list of whole numbers"),
        (["table3", "--data-root", "."], "voc2007"),
    ],
)
def test_bad_input(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    assert done.exit_code != 0
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
