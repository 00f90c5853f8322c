"""The command line as users meet it: real processes where signals matter, in-process elsewhere."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer import Context
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner, Result

import adagp
from adagp import data
from adagp.cli import app
from adagp.training import Recipe, Run, RunFolder, load_preset, methods, preset_names

SMALL = ["--data", "digits", "--epochs", "2", "--batch-size", "32", "--train-limit", "480", "--test-limit", "100"]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def process(*words: str, cwd: Path, preexec_fn: Callable[[], None] | None = None) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "adagp", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)
    return loaded


def wait_for_checkpoint(running: "subprocess.Popen[str]", path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


LONG = [*SMALL[:2], "--epochs", "6", *SMALL[4:], "--method", "adagp", "--checkpoint-seconds", "0"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(1)
    result = call("train", *LONG, "--out", str(folder))
    assert result.exit_code == 0, result.output
    return weights(folder)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_resumes_bit_for_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: dict[str, torch.Tensor],
    sent: signal.Signals,
    code: int,
) -> None:
    folder = tmp_path / "run"
    running = process("train", *LONG, "--out", "run", cwd=tmp_path)
    wait_for_checkpoint(running, folder / "checkpoint.pt")
    time.sleep(0.3)
    running.send_signal(sent)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == code
    assert not (folder / "result.json").exists()
    words = ["adagp", "train", "--out", "run", "--resume"]
    if sent != signal.SIGKILL:
        words = errors.strip().splitlines()[-1].split()
        assert words == ["adagp", "train", "--out", "run", "--resume"]
        assert "Traceback" not in errors
    monkeypatch.chdir(tmp_path)
    again = call(*words[1:], "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["steps"] == 90
    resumed = weights(folder)
    for name, wanted in uninterrupted.items():
        assert torch.equal(resumed[name], wanted), name


def test_train_json_is_one_object(tmp_path: Path) -> None:
    result = call("train", *SMALL, "--json", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["steps"] == 30
    assert set(figures["median_ms"]) <= {"WARMUP", "BP", "GP"}
    for name in ("recipe", "environment", "metrics", "quality", "result"):
        json.loads((tmp_path / "run" / f"{name}.json").read_text())
    assert len(json.loads((tmp_path / "run" / "metrics.json").read_text())) == 2


def test_compare_writes_table_verdict_picture_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("compare", *SMALL, "--seeds", "0", "--methods", "bp,adagp,skip,short-bp")
    assert result.exit_code == 0, result.output
    assert "Verdict" in result.stdout
    for name in ("bp", "adagp", "skip", "short-bp"):
        assert name in result.stdout
    folder = Path("runs") / "compare-digits-resnet8"
    assert (folder / "figures.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert str(folder / "report.html") in result.stdout

    again = call("compare", *SMALL, "--seeds", "0", "--methods", "bp,adagp,skip,short-bp", "--resume", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["folder"] == str(folder)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "--model", "resnet99"], 2, r"unknown model 'resnet99'.*resnet20"),
        (["train", "--data", "imagenot"], 2, r"unknown data 'imagenot'.*digits"),
        (["train", "--method", "magic"], 2, r"unknown method 'magic'.*adagp"),
        (["train", "--preset", "nope"], 2, r"unknown preset 'nope'.*demo"),
        (["train", "--train-limit", "10", "--batch-size", "64"], 2, r"train_limit = 10.*no full batch.*raise"),
        (["train", "--batch-size", "9000", "--data", "digits"], 2, r"batch_size = 9000.*lower batch_size"),
        (["train", "--set", "lrr=1"], 2, r"unknown recipe field 'lrr'.*'lr'"),
        (["train", "--set", "lr"], 2, r"field=value"),
        (["train", "--data", "digits", "--set", "include=no_such_layer"], 2, r"no_such_layer"),
        (["train", "--method", "short-bp"], 2, r"short-bp.*compare"),
        (["train", "--data", "cifar10", "--data-root", "nowhere"], 1, r"cifar-10"),
        (["train", "--device", "quantum"], 2, r"device 'quantum'"),
        (["train", "--device", "meta"], 2, r"device 'meta'"),
        (["train", "--resume"], 1, r"to resume"),
        (["train", "--out", "absent", "--resume"], 1, r"recipe\.json.*cannot be read"),
        (
            ["train", "--data", "digits", "--lr", "1e9", "--method", "bp"],
            1,
            r"bp seed 0, epoch 1.*not finite.*[Ll]ower",
        ),
        (["compare", "--methods", "bp,magic"], 2, r"unknown methods magic"),
        (["compare", "--seeds", "a,b"], 2, r"seeds = 'a,b'"),
        (["compare", "--budget", "-1"], 2, r"budget"),
        (["train", "--set", "warmup_epochs=inf"], 2, r"warmup_epochs = inf.*at least 0"),
        (["train", "--set", "batch_size=abc", "--train-limit", "100"], 2, r"batch_size = 'abc'.*int"),
        (["train", "--method", "bp", "--set", "predictor=paper"], 2, r"predictor = paper would change nothing.*bp"),
        (
            ["train", "--method", "adagp-paper", "--set", "predictor=trusted"],
            2,
            r"contradicts method adagp-paper.*method adagp",
        ),
        (["compare", "--set", "seed=3"], 2, r"seed is set for each run.*--seeds"),
        (["compare", "--set", "method=adagp"], 2, r"method is set for each run.*--methods"),
        (["compare", "--set", "steps=9", "--budget", "5"], 2, r"steps = 9 and a budget"),
        (["compare", "--epochs", "9", "--budget", "5"], 2, r"epochs and --budget"),
        (
            ["compare", "--methods", "bp,adagp-paper", "--set", "predictor=literal"],
            2,
            r"contradicts method adagp-paper",
        ),
        (["compare", "--data", "digits", "--set", "include=no_such_layer"], 2, r"no_such_layer"),
        (
            ["train", "--model", "transformer", "--data", "cifar10"],
            2,
            r"is for translation, but data 'cifar10'.*multi30k",
        ),
        (["train", "--model", "cnn", "--set", "sizes.width=3"], 2, r"sizes\.width is not a size of cnn"),
        (["schedule", "--method", "adaptive"], 2, r"adaptive.*train --method adaptive.*metrics\.json"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == code, result.output
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("adagp: error: ")
    assert re.search(message, line), line
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert not list(tmp_path.rglob("compare.json"))


def test_bad_recipe_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert call("train", "--data", "digits", "--set", "include=no_such", "--out", str(out)).exit_code == 2
    assert not out.exists()


def test_debug_shows_the_cause() -> None:
    result = call("train", "--model", "resnet99", "--debug")
    assert isinstance(result.exception, ValueError)


def test_existing_folder_and_foreign_checkpoints(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    assert call("train", *SMALL, "--out", one).exit_code == 0
    again = call("train", *SMALL, "--out", one)
    assert again.exit_code == 1
    assert "--resume" in again.stderr
    changed = call("train", *SMALL, "--lr", "0.5", "--out", one, "--resume")
    assert changed.exit_code == 1
    assert re.search(r"another recipe.*lr 0\.5.*no options but --out", changed.stderr)

    assert call("train", *SMALL, "--model", "resnet14", "--set", "steps=2", "--out", other).exit_code == 0
    target = RunFolder(tmp_path / "one").checkpoint_path
    good = target.read_bytes()
    for bad, message in [
        ((RunFolder(tmp_path / "other").checkpoint_path).read_bytes(), "another run.*model"),
        (good[:-100], "damaged"),
        (b"PK\x03\x04 something else", "not an adagp checkpoint"),
    ]:
        target.write_bytes(bad)
        result = call("train", "--out", one, "--resume")
        assert result.exit_code == 1
        assert re.search(message, result.stderr), result.stderr
        assert target.read_bytes() == bad
    target.write_bytes(good)
    assert call("train", "--out", one, "--resume").exit_code == 0


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    """The operating system refuses to write as much as a checkpoint needs, in a process of its own."""
    folder = RunFolder(tmp_path / "run")
    recipe = Recipe(data="digits", epochs=2, batch_size=32, train_limit=480, test_limit=100)
    run = Run(recipe, data.load("digits"))
    folder.prepare(run, resume=False)
    run.step()
    folder.save(run)
    checkpoint = folder.checkpoint_path
    before = checkpoint.read_bytes()
    del folder  # and its lock: the run goes on in another process

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

    full = process("train", "--out", "run", "--resume", cwd=tmp_path, preexec_fn=limit)
    _, errors = full.communicate(timeout=120)
    assert full.returncode == 1
    assert re.search(r"cannot be saved: File too large; the previous checkpoint is untouched", errors), errors
    assert "Traceback" not in errors
    assert checkpoint.read_bytes() == before
    assert call("train", "--out", str(checkpoint.parent), "--resume").exit_code == 0


def test_schedule_and_data_as_json() -> None:
    shown = json.loads(call("schedule", "--json").stdout)
    assert shown["epochs"][0] == {
        "epochs": "1-10",
        "GP:BP": "warm-up",
        "WARMUP": "390",
        "BP": "0",
        "GP": "0",
        "GP share": "0 %",
        "share of an epoch": "#" * 20,
    }
    rows = {row["name"]: row for row in json.loads(call("data", "--json").stdout)}
    assert rows["digits"]["available"]


@pytest.mark.parametrize("command", ["train", "compare", "schedule", "models", "data"])
def test_help_teaches(command: str) -> None:
    """Every command says what it does, shows itself in use, and explains every option."""
    result = call(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"adagp {command}\b.*: ", re.sub(r"\s+", " ", result.output))
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for parameter in group.get_command(Context(group), command).params:
        assert isinstance(parameter, TyperOption)
        assert parameter.opts[0] in shown
        assert parameter.help
        assert " ".join(parameter.help.split()[:2]) in shown
    if command in ("train", "compare"):
        for name in (*methods.names(), *preset_names()):
            assert name in shown
        assert load_preset("demo").about.split(":")[0] in shown


def test_adaptive_says_why(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--method", "adaptive", "--set", "warmup_epochs=0.1", "--epochs", "4"]
    shown = call(*words, "--out", str(tmp_path / "one"))
    assert shown.exit_code == 0, shown.output
    reasons = json.loads((tmp_path / "one" / "result.json").read_text())["reasons"]
    assert reasons
    assert reasons[-1] in shown.stdout
    metrics = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert [reason for epoch in metrics for reason in epoch["reasons"]] == reasons


def test_tensorboard(tmp_path: Path) -> None:
    result = call("train", *SMALL, "--tensorboard", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "run" / "tensorboard").rglob("events.out.tfevents.*"))


def test_tensorboard_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = call("train", *SMALL, "--tensorboard", "--out", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "adagp[tensorboard]" in result.stderr
