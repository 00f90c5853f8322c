import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from adagp.cli import app


def run(*arguments, columns=200):
    return CliRunner().invoke(app, ["pipeline", *arguments], env={"COLUMNS": str(columns)})


def simulated(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("schedule", "one", "two"), [("gpipe", 21, 25), ("dapple", 21, 25), ("chimera", 16, 20)])
def test_steps_of_the_issue(schedule, one, two):
    arguments = ["--schedule", schedule, "--devices", "4", "--microbatches", "4"]
    assert simulated(*arguments, "--phases", "BP")["steps"] == one
    found = simulated(*arguments, "--phases", "GP,BP")
    assert (found["steps"], found["all_bp_steps"], found["speed_up"]) == (two, 2 * one, 2 * one / two)
    assert len(found["tasks"]) == 4 * 12
    assert max(task["end"] for task in found["tasks"]) == two
    assert {task["phase"] for task in found["tasks"] if task["pass"] == "backward"} == {"BP"}


def test_phases_may_be_repeated_and_costs_given_per_stage():
    found = simulated("--phases", "2gp, warmup")
    assert found["phases"] == ["GP", "GP", "WARMUP"]
    assert found["steps"] == 29
    uneven = simulated("--devices", "2", "--microbatches", "1", "--forward", "1,2.5", "--backward", "3", "--json")
    assert uneven["steps"] == 1 + 2.5 + 3 + 3
    slow = simulated("--devices", "2", "--microbatches", "1", "--predictor", "0.5", "--communication", "2")
    assert slow["steps"] == 1.5 + 2 + 1.5 + 3 + 2 + 3
    assert slow["all_bp_steps"] == 1 + 2 + 1 + 2 + 2 + 2


def test_grid_and_figures_are_printed():
    result = run("--devices", "2", "--microbatches", "2", "--phases", "GP,BP")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "gpipe, 2 devices, 2 micro-batches, phases GP BP"
    assert lines[1] == "device 0 G0 G1 F2 F3  ·  ·  · B2 -- B3 --"
    assert lines[2] == "device 1  · G0 G1 F2 F3 B2 -- B3 --  ·  ·"
    assert "steps: 11" in lines
    assert "all BP, without a predictor: 18 steps, so the speed-up is 1.636" in lines


def test_a_split_backward_and_local_losses_are_drawn(tmp_path):
    result = run("--schedule", "zero-bubble", "--devices", "2", "--microbatches", "2")
    lines = result.stdout.splitlines()
    assert lines[1] == "device 0 F0 F1  · B0 W0 B1 W1"
    assert lines[2] == "device 1  · F0 B0 F1 B1 W0 W1"
    assert "steps: 7" in lines
    assert "gradient of the weights" in result.stdout
    svg = tmp_path / "p.svg"
    result = run("--schedule", "local", "--devices", "2", "--microbatches", "2", "--svg", str(svg))
    lines = result.stdout.splitlines()
    assert lines[1] == "device 0 F0 L0 -- F1 L1 --  ·"
    assert lines[2] == "device 1  · F0 L0 -- F1 L1 --"
    assert "all BP under dapple, without a predictor: 9 steps, so the speed-up is 1.286" in lines
    assert "backward, local loss" in svg.read_text()
    passes = [task["pass"] for task in simulated("--schedule", "zero-bubble")["tasks"]]
    assert [passes.count(kind) for kind in ("forward", "backward", "weights")] == [16, 16, 16]


def test_a_coarse_batch_is_drawn_shorter(tmp_path):
    arguments = ["--devices", "2", "--microbatches", "1", "--phases", "bp@0.5, BP"]
    svg = tmp_path / "p.svg"
    result = run(*arguments, "--svg", str(svg))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "gpipe, 2 devices, 1 micro-batches, phases BP@0.5 BP"
    full = " ".join(["F1", *["--"] * 3, *[" ·"] * 12, "B1", *["--"] * 7])
    assert lines[1] == f"device 0 f0  ·  ·  · b0 -- {full}"
    assert "f  forward, coarse BP    b  backward, coarse BP" in lines[3]
    assert "steps: 7.5" in lines
    assert "bubbles: 7.5 of 15 device steps" in lines
    assert "forward, coarse BP: micro-batch 0 (batch 0)" in svg.read_text()
    found = simulated(*arguments)
    assert (found["steps"], found["all_bp_steps"], found["scales"]) == (7.5, 12, [0.5, 1.0])
    assert (found["bubbles"], found["busy"]) == (7.5, 0.5)
    assert [task["scale"] for task in found["tasks"] if task["device"] == 0] == [0.5, 0.5, 1, 1]
    assert "coarse" not in run("--phases", "GP,BP").stdout
    assert simulated("--phases", "4BP@0.5,BP")["steps"] == 42
    assert simulated("--phases", "BP@1")["steps"] == 21
    assert "draw it with --svg" in run("--forward", "0.000001", "--phases", "BP@0.01").stdout


@pytest.mark.parametrize("columns", [80, 40, 12])
def test_a_grid_is_folded_at_the_terminals_width_and_loses_nothing(columns):
    arguments = ("--devices", "2", "--microbatches", "4", "--phases", "3BP")
    wide, narrow = (
        [line for line in run(*arguments, columns=each).stdout.splitlines() if line.startswith("device ")]
        for each in (400, columns)
    )
    assert len(wide) == 2
    for device, whole in enumerate(wide):
        bands = [line.removeprefix(f"device {device}") for line in narrow if line.startswith(f"device {device}")]
        assert "".join(bands) == whole.removeprefix(f"device {device}")
        assert len(bands) > 1
    assert max(map(len, narrow)) <= max(columns, len("device 0  F0"))


def test_a_folded_grid_says_at_which_step_each_part_starts():
    lines = run("--devices", "2", "--microbatches", "4", "--phases", "3BP", columns=68).stdout.splitlines()
    starts = [line for line in lines if line.startswith("from step ")]
    assert starts == ["from step 0", "from step 15", "from step 30"]


def test_a_grid_too_wide_is_named_and_drawn_elsewhere():
    assert "draw it with --svg" in run("--backward", "2.001").stdout


def test_pictures_page_and_trace(tmp_path):
    svg, html, trace = tmp_path / "p.svg", tmp_path / "p.html", tmp_path / "p.json"
    result = run("--schedule", "chimera", "--svg", str(svg), "--html", str(html), "--trace", str(trace))
    assert result.exit_code == 0, result.output
    assert ElementTree.fromstring(svg.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
    assert "16 steps" in svg.read_text()
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert len(json.loads(trace.read_text())["traceEvents"]) == 1 + 4 + 4 * 8
    for path in (svg, html, trace):
        assert f": {path}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--schedule", "zigzag"], ["schedule 'zigzag'", "gpipe, dapple, chimera"]),
        (["--phases", "BP,FP"], ["phases: 'FP'", "4GP,BP"]),
        (["--phases", "0GP"], ["phases: '0GP'"]),
        (["--phases", "BP@2"], ["phases: 'BP@2'", "from 0.01 to 1", "BP@0.5"]),
        (["--phases", "BP@0"], ["phases: 'BP@0'", "from 0.01 to 1"]),
        (["--phases", "BP@-0.5"], ["phases: 'BP@-0.5'", "from 0.01 to 1"]),
        (["--phases", "BP@nan"], ["phases: 'BP@nan'", "from 0.01 to 1"]),
        (["--phases", "BP,BP@"], ["phases: 'BP@'", "give for example BP@0.5"]),
        (["--phases", "BP@half"], ["phases: 'BP@half'", "give for example BP@0.5"]),
        (["--phases", "GP@0.5,BP"], ["phases: 'GP@0.5'", "only BP batches can be coarse", "give GP"]),
        (["--phases", "WARMUP@0.5"], ["phases: 'WARMUP@0.5'", "only BP batches", "give WARMUP"]),
        (["--phases", ""], ["phases: ''"]),
        (["--schedule", "chimera", "--devices", "5"], ["devices=5", "even number"]),
        (["--devices", "0"], ["devices=0", "at least 1"]),
        (["--microbatches", "0"], ["microbatches=0", "at least 1"]),
        (["--forward", "1,2"], ["forward: 2 values for 4 stages"]),
        (["--forward", "fast"], ["forward: 'fast'", "1,2,1,1"]),
        (["--backward", "0"], ["error: backward=0: ", "positive and finite time"]),
        (["--forward", "1,2,nan,1"], ["error: forward=[1, 2, nan, 1]: ", "positive and finite time"]),
        (["--predictor", "-1"], ["predictor=-1", "0 or more"]),
        (["--predictor", "nan"], ["error: predictor=nan: must be 0 or more, and finite"]),
        (["--devices", "1000000", "--microbatches", "1000"], ["1000000 x 1000 x 1 ", "at most 100000"]),
        (["--phases", "GP,99999999999999BP"], ["x 100000000000000 ", "fewer batches"]),
        (["--communication", "nan"], ["communication=nan"]),
        (["--svg", "missing/p.svg"], ["no folder 'missing'", "make it first"]),
        (["--html", "/"], ["'/' cannot be written: it is a folder", "name a file"]),
    ],
)
def test_bad_input_is_named_with_its_remedy(arguments, messages):
    result = run(*arguments)
    assert result.exit_code == 2
    for message in messages:
        assert message in result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = run("--svg", str(tmp_path / "p.svg"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"adagp: error: {tmp_path / 'p.svg'}: No space left on device;")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_simulating_a_pipeline_does_not_wait_for_torch():
    code = (
        "import sys; from adagp.cli import app; app(['pipeline', '--schedule', 'chimera'], standalone_mode=False); "
        "slow = {'torch', 'matplotlib', 'sklearn'} & set(sys.modules); assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "steps: 16" in done.stdout
