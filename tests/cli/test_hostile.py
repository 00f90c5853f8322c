"""Inputs that nobody writes on purpose: each is refused in one short line that names it, and nothing is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import adagp
from adagp.cli import app

DEEP = "[" * 5000 + "]" * 5000
NESTED = "[" * 300 + "]" * 300
BIG = "9" * 400
HUGE = "9" * 5000
HEX = "0x" + "f" * 5000
LONG = "x" * 100_000


PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def refused(result: Result, message: str, code: int | None = 2) -> None:
    """One line of bearable length, no traceback."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code if code else result.exit_code in (1, 2), result.output
    lines = result.stderr.strip().splitlines()
    if lines[0].startswith("Usage"):  # the parser's own words
        assert re.search(message, result.stderr), result.stderr
        return
    assert lines[-1].startswith("adagp: error: "), result.stderr
    assert re.search(message, lines[-1]), lines[-1]
    assert len(lines[-1]) < 1000, lines[-1][:2000]
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", f"lr = {DEEP}", "a.toml.*nested"),
        ("a.toml", f"lr = {NESTED}", "a.toml.*nested"),
        ("a.toml", "lr = " + "{a = " * 2000 + "1" + "}" * 2000, "a.toml.*nested"),
        ("a.toml", ".".join("a" * 3000) + " = 1", "a.toml.*nested"),
        ("a.toml", f"lr = {BIG}", "a.toml.*too large"),
        ("a.toml", f"lr = {HUGE}", "a.toml.*too large"),
        ("a.toml", f"epochs = {HEX}", "a.toml.*too large"),
        ("a.toml", f"sizes = {{width = -{BIG}}}", "a.toml.*too large"),
        ("a.toml", f"[compare]\nseeds = [{BIG}]", "a.toml.*too large"),
        ("a.toml", "lr = 1e999", "lr = inf is out of range"),
        ("a.toml", "lr = nan", "lr = nan is out of range"),
        ("a.toml", "sizes = 3\n'sizes.width' = 4", "sizes = 3.*sizes.width"),
        ("a.toml", "lr = 1979-05-27", "lr.*type float"),
        ("a.toml", f"model = '{LONG}'", "unknown model 'xxx"),
        ("a.toml", f"{LONG} = 1", "unknown recipe field 'xxx"),
        ("a.toml", "include = '['", r"include = '\['.*regular expression"),
        ("a.toml", "exclude = '(?P<'", r"exclude = .*regular expression"),
        ("a.json", DEEP, "a.json.*nested"),
        ("a.json", '{"lr":' * 5000 + "1" + "}" * 5000, "a.json.*nested"),
        ("a.json", f'{{"lr": {NESTED}}}', "a.json.*nested"),
        ("a.json", f'{{"epochs": {BIG}}}', "a.json.*too large"),
        ("a.json", f'{{"epochs": {HUGE}}}', "a.json.*too large"),
        ("a.json", '{"lr": NaN}', "a.json.*NaN"),
        ("a.json", '{"lr": -Infinity}', "a.json.*Infinity"),
        ("a.json", '{"lr": 1e999}', "lr = inf is out of range"),
        ("a.json", '{"lr": 0.1, "lr": 0.2}', "a.json.*'lr' is there twice"),
        ("a.json", "[]", "a.json.*no table"),
        ("a.json", "", "a.json"),
        ("a.json", "\ud800", "a.json.*utf-8"),
    ],
)
def test_recipe_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(call("train", "--recipe", str(path), "--out", str(tmp_path / "run")), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sizes=3", "sizes.width=4"], r"sizes = 3.*sizes\.width"),
        (["sizes=none", "sizes.width=4"], r"sizes = None.*sizes\.width"),
        (["sizes={layers=1}", "sizes.layers=2"], r"sizes\.layers is given twice"),
        (["sizes.layers=1", "sizes.layers=2"], r"sizes\.layers is given twice"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=1", "lr =2"], "lr is given twice"),
        (["epochs=3"], r"epochs is given twice: by --epochs and by --set"),
        (["lr=1\nmomentum=2"], r"lr = '1\\nmomentum=2'.*type float"),
        (["=1"], "unknown recipe field ''"),
        ([f"lr={DEEP}"], "lr.*nested"),
        ([f"lr={NESTED}"], "lr.*nested"),
        ([f"lr={HUGE}"], "lr.*too large"),
        ([f"lr={BIG}"], "lr.*too large"),
        ([f"threads={HEX}"], "threads.*too large"),
        (["threads=99999999999"], "threads = 99999999999 is out of range"),
        (["steps=99999999999999999999"], "steps.*too large"),
        (["beam=99999999999999"], "beam = 99999999999999 is out of range"),
        (["topk=99999999999999"], "topk = 99999999999999 is out of range"),
        (["image_size=99999999999999"], "image_size = 99999999999999 is out of range"),
        (["batch_size=99999999999999"], "batch_size = 99999999999999 is out of range"),
        (["momentum=-nan"], "momentum = nan is out of range"),
        (["method=[1]"], "method"),
        (["model={a=1}"], "model"),
        (["data=true"], "data"),
        (["form=[]"], "form"),
        (["sizes=[]"], "sizes"),
        (["predictor=1.5"], "predictor"),
        (["include=["], r"include = '\['.*regular expression"),
        (["include=" + "(" * 5000 + ")" * 5000], "include.*regular expression"),
        (["schedule=1\n2"], "schedule"),
        (["lr=1" + LONG], "lr = '1xxx"),
        (["\x00=\x00"], "unknown recipe field"),
    ],
)
def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    options = [option for word in words for option in ("--set", word)]
    refused(call("train", "--epochs", "2", *options), message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["schedule", "--epochs", "99999999"], "epochs.*too large"),
        (["train", "--epochs", BIG], "epochs.*too large"),
        (["train", "--seed", BIG], "seed.*too large"),
        (["train", "--lr", "nan"], "lr = nan"),
        (["train", "--checkpoint-seconds", "nan"], "checkpoint-seconds"),
        (["compare", "--seeds", BIG], "seeds"),
        (["compare", "--seeds", HUGE], "seeds"),
        (["compare", "--seeds", "0,,1"], "seeds"),
        (["compare", "--methods", "," + LONG], "unknown methods"),
        (["schedule", "--epochs", BIG], "epochs.*too large"),
        (["schedule", "--warmup-epochs", "nan"], "warmup_epochs = nan"),
        (["schedule", "--warmup-epochs", "1e300"], "warmup_epochs"),
        (["schedule", "--steps-per-epoch", BIG], "too large"),
        (["schedule", "show", "--model", LONG], "no model is called"),
        (["schedule", "show", "--until", LONG], "until"),
        (["schedule", "show", "--schedule", LONG], "schedule"),
        (["schedule", "show", "--topk", BIG], "topk"),
        (["schedule", "show", "--batches", BIG], "batches"),
        (["schedule", "show", "--start", BIG], "start"),
        (["pipeline", "--devices", BIG], "devices"),
        (["pipeline", "--phases", f"{HUGE}GP"], "phases"),
        (["pipeline", "--phases", f"{BIG}GP"], "phases"),
        (["pipeline", "--forward", "1e999"], "forward"),
        (["pipeline", "--forward", "nan"], "forward"),
        (["pipeline", "--forward", "1e-320"], "forward"),
        (["pipeline", "--forward", "1e308"], "forward"),
        (["pipeline", "--communication", "inf"], "communication"),
        (["pipeline", "--communication", "1e308"], "communication"),
        (["simulate", "--model", "vgg13", "--batch", BIG], "batch"),
        (["simulate", "--model", "vgg13", "--epochs", BIG], "epochs"),
        (["simulate", "--model", "vgg13", "--array", f"{BIG}x2"], "array"),
        (["simulate", "--model", "vgg13", "--array", f"{HUGE}x2"], "array"),
        (["simulate", "--model", "vgg13", "--second-array", f"{BIG}x2"], "second-array"),
        (["simulate", "--model", "vgg13", "--grid", BIG], "grid"),
        (["simulate", "--model", "vgg13", "--channels", BIG], "channels"),
        (["simulate", "--model", "vgg13", "--bandwidth", BIG], "bandwidth"),
        (["simulate", "--model", "vgg13", "--buffer-words", BIG], "buffer_words"),
        (["simulate", "--model", "vgg13", "--register-words", BIG], "register_words"),
        (["simulate", "--model", "vgg13", "--vector-lanes", BIG], "vector_lanes"),
        (["simulate", "--model", "vgg13", "--search", "--pes", BIG], "pes"),
        (["simulate", "--model", "vgg13", "--search", "--pes", "-1"], "pes"),
        (["simulate", "--model", "vgg13", "--sweep", f"batch={BIG}"], "batch"),
        (["simulate", "--model", "vgg13", "--sweep", f"batch={HUGE}"], "batch"),
        (["simulate", "--model", "vgg13", "--sweep", "batch=" + LONG], "batch"),
        (["simulate", "--layer", f"c_in={BIG},c_out=3"], "c_in"),
        (["simulate", "--layer", f"c_in={HUGE},c_out=3"], "c_in"),
        (["simulate", "--layer", "c_in=3,c_out=3,out=" + "1x" * 500 + "1"], "out"),
        (["simulate", "--layer", "c_in=3,c_out=3,out=1x1x1"], "out|kernel"),
        (["simulate", "--layer", LONG], "layer"),
        (["simulate", "--model", LONG], "model"),
        (["simulate", "--model", "vgg13", "--data", LONG], "data"),
        (["simulate", "--module", "torch.nn:Identity", "--input", f"{BIG}x2x2"], "input"),
        (["simulate", "--module", "torch.nn:Identity", "--input", "9999999999x9999999999x9999999999"], "input"),
        (["reproduce", "fig16", "--batch", BIG], "batch"),
        (["reproduce", "fig16", "--grid", BIG], "grid"),
        (["reproduce", "fig16", "--data", "nope"], "data"),
        (["reproduce", "approximation-accuracy", "--tables", HUGE], "tables"),
        (["reproduce", "approximation-accuracy", "--tables", "99"], "table"),
    ],
)
def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused(call(*words), message)
    assert not list(tmp_path.iterdir())


def process(*words: str, cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    """A process whose locale knows ASCII alone."""
    environment = os.environ | PLAIN | {"PYTHONPATH": str(Path(adagp.__file__).parents[1])}
    environment.pop("PYTHONIOENCODING", None)
    command = [sys.executable, "-m", "adagp", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=120)


def test_files_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    text = "about = 'schön'\ndata = 'digits'\nmethod = 'bp'\nepochs = 1\ntrain_limit = 64\ntest_limit = 10\n"
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    done = process("train", "--recipe", "mine.toml", "--set", "include=conv|é|", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert process("train", "--out", "run", "--resume", cwd=tmp_path).returncode == 0
    (tmp_path / "mine.txt").write_text("# Zeitplan für später\nlayer 1 2\n* backprop zero\n", encoding="utf-8")
    shown = process("schedule", "show", "--schedule", "mine.txt", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbflr = -1\r\n")
    refused(call("train", "--recipe", str(tmp_path / "mine.toml")), "lr = -1.*out of range")


def test_characters_that_the_terminal_does_not_know_are_replaced(tmp_path: Path) -> None:
    shown = process("pipeline", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"device 0" in shown.stdout


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "include=no_such_layer"], "no_such_layer"),
        (["--method", "prefix", "--until", "no_such_layer"], "no_such_layer"),
        (["--method", "table", "--schedule", "mine.txt"], "no_such_layer"),
        (["--device", "quantum"], "quantum"),
        (["--lr", "-1"], "lr = -1"),
    ],
)
def test_a_wrong_option_is_told_before_missing_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("layer 1\nno_such_layer zero\n", encoding="utf-8")
    if command == "compare":
        words = ["--methods" if word == "--method" else word for word in words]
    refused(call(command, "--data", "cifar10", "--data-root", str(tmp_path), *words), message)


@pytest.mark.parametrize(
    "words", [["simulate", "--model", "no_such_model"], ["reproduce", "fig16", "--data", "no_such_data"]]
)
@pytest.mark.parametrize(("name", "message"), [("a.xyz", "xyz.*png"), ("absent/a.png", "no folder"), (".", "a folder")])
def test_files_that_cannot_be_written_are_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], name: str, message: str
) -> None:
    """The other mistake is found later, when the work begins."""
    monkeypatch.chdir(tmp_path)
    refused(call(*words, "--picture", name), message)
