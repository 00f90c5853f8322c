"""Run folders as no run leaves them: refused by name in one line, nothing in them touched, and never waited for."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adagp.cli import app

SMALL = ["--data", "digits", "--batch-size", "32", "--train-limit", "64", "--test-limit", "50", "--epochs", "1"]
DEEP = "[" * 5000 + "]" * 5000


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in sorted(folder.rglob("*")) if entry.is_file()}


def refused(result: Result, message: str) -> None:
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (1, 2), result.output
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("adagp: error: "), result.stderr
    assert re.search(message, line), line
    assert len(line) < 1000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and a finished comparison, to copy from."""
    folder = tmp_path_factory.mktemp("made")
    assert call("train", *SMALL, "--out", str(folder / "run")).exit_code == 0
    assert call("compare", *SMALL, "--methods", "bp", "--seeds", "0", "--out", str(folder / "both")).exit_code == 0
    return folder


def put(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(text.encode("utf-8", "surrogatepass")) and None


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def edit(**changes: object) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8") and None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (pipe, r"recipe\.json.*not a regular file"),
        (device, r"recipe\.json.*not a regular file"),
        (directory, r"recipe\.json.*"),
        (loop, r"recipe\.json.*"),
        (put(""), r"recipe\.json.*not valid JSON"),
        (put("[]"), r"recipe\.json.*not a JSON object"),
        (put(DEEP), r"recipe\.json.*nested"),
        (put('{"epochs": ' + "9" * 400 + "}"), r"recipe\.json.*too large"),
        (put('{"epochs": ' + "9" * 5000 + "}"), r"recipe\.json.*too large"),
        (put('{"lr": NaN}'), r"recipe\.json.*NaN"),
        (put('{"model": "\ud800"}'), r"recipe\.json.*utf-8"),
        (edit(colour="red"), r"recipe\.json.*not a recipe of this version.*colour"),
        (edit(lr="fast"), r"recipe\.json.*not a recipe of this version.*lr"),
        (edit(sizes=[[]]), r"recipe\.json.*not a recipe of this version.*sizes"),
    ],
)
def test_a_spoilt_recipe(tmp_path: Path, made: Path, spoil: Callable[[Path], None], message: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    spoil(folder / "recipe.json")
    before = content(folder)
    refused(call("train", "--out", str(folder), "--resume"), message)
    assert content(folder) == before


@pytest.mark.parametrize("spoil", [pipe, device, directory, loop, put("x" * 300), put("")])
def test_a_spoilt_checkpoint(tmp_path: Path, made: Path, spoil: Callable[[Path], None]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    spoil(folder / "checkpoint.pt")
    before = content(folder)
    result = call("train", "--out", str(folder), "--resume")
    if spoil is loop:  # as if there were none: the run begins again
        assert result.exit_code == 0
        return
    refused(result, r"checkpoint\.pt")
    assert content(folder) == before


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("compare.json", pipe, "compare.json.*not a regular file"),
        ("compare.json", put(DEEP), "compare.json.*nested"),
        ("compare.json", put("{}"), "compare.json.*no comparison"),
        ("compare.json", edit(recipe=3), "compare.json.*no comparison"),
        ("compare.json", edit(recipe={"colour": 1}), "compare.json.*no comparison.*colour"),
        ("compare.json", edit(methods="bp"), "compare.json.*no comparison"),
        ("compare.json", edit(methods=[[1]]), "compare.json.*no comparison"),
        ("compare.json", edit(seeds=["a"]), "compare.json.*no comparison"),
        ("compare.json", edit(budget_seconds="x"), "compare.json.*no comparison"),
        ("calibration.json", pipe, "calibration.json.*not a regular file"),
        ("calibration.json", put("{}"), "calibration.json.*no measurement.*remove"),
        ("calibration.json", edit(seconds={"bp": {"BP": -1.0}}), "calibration.json.*seconds of bp"),
        ("calibration.json", edit(seconds={"bp": {"BP": 0}}), "calibration.json.*no time"),
        ("calibration.json", edit(seconds=3), "calibration.json.*seconds of bp"),
        ("calibration.json", edit(peak_bytes={"bp": "much"}), "calibration.json.*peak_bytes of bp"),
        ("environment.json", put("3"), "environment.json.*not a JSON object"),
        ("environment.json", pipe, "environment.json.*not a regular file"),
    ],
)
def test_a_spoilt_comparison(
    tmp_path: Path, made: Path, name: str, spoil: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "both"
    shutil.copytree(made / "both", folder)
    spoil(folder / name)
    refused(call("compare", "--out", str(folder), "--resume"), message)


@pytest.mark.parametrize(
    "text", ["", "3", "[3]", '[{"layers": 3}]', '[{"layers": {"a": {}}}]', '[{"layers": {"a": {"mape": "x"}}}]', DEEP]
)
def test_spoilt_figures_of_quality(tmp_path: Path, made: Path, text: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "run", folder)
    (folder / "quality.json").write_text(text, encoding="utf-8")
    out = str(tmp_path / "out")
    refused(call("reproduce", "predictor-quality", "--run", str(folder), "--out", out), "quality.json")


def test_places_that_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "locked").mkdir()
    os.mkfifo(tmp_path / "locked" / ".lock")
    for name in ("file", "loop", "file/inside"):
        refused(call("train", *SMALL, "--out", str(tmp_path / name)), name)
    for name in ("file", "loop", "empty"):
        refused(call("train", "--out", str(tmp_path / name), "--resume"), "recipe.json")
    refused(call("train", *SMALL, "--recipe", str(tmp_path)), "is not a regular file|Is a directory")
    assert call("train", *SMALL, "--out", str(tmp_path / "locked")).exit_code == 0
    os.mkfifo(tmp_path / "recipe.toml")
    refused(call("train", "--recipe", str(tmp_path / "recipe.toml")), "recipe.toml.*not a regular file")
    refused(call("schedule", "show", "--schedule", str(tmp_path / "recipe.toml")), "recipe.toml.*not a regular file")
