import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagp.cli import app

CONV1_2 = "c_in=64,c_out=64,out=32x32,kernel=3"


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "200"})


def simulated(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_layer_of_the_issue():
    found = simulated("--layer", CONV1_2, "--batch", "1", "--array", "12x15", "--dataflow", "ws")
    assert found["forward"]["cycles"] - 1 == 254_639  # SCALE-Sim counts the last cycle from zero
    assert found["forward"]["dram_words"] == 64 * 1024 + 64 * 64 * 9 + 64 * 1024
    for name in ("forward", "input_grad", "weight_grad"):
        assert found[name]["macs"] == 1024 * 64 * 64 * 9
        assert found[name]["utilisation"] == found[name]["macs"] / (180 * found[name]["cycles"])
    assert found["weight_grad"]["cycles"] == -(-1024 // 12) * -(-64 // 15) * (24 + 15 + 576 - 2)


def test_row_stationary_batch():
    found = simulated("--layer", "c_in=256,c_out=256,out=8x8,kernel=3", "--batch", "128", "--dataflow", "rs")
    assert (found["forward"]["cycles"], found["forward"]["dram_words"]) == (50_331_648, 18_087_936)


def test_optional_keys():
    found = simulated("--layer", "c_in=8,c_out=16,out=4,kernel=1x3,stride=2,groups=8,in=9x7", "--batch", "3")
    assert found["forward"]["macs"] == 3 * 16 * 16 * 3
    assert found["input_grad"]["macs"] == 3 * 63 * 8 * 2 * 3
    assert found["layer"]["image"] == [9, 7]
    assert simulated("--layer", "c_in=512,c_out=10", "--batch", "4")["forward"]["macs"] == 4 * 512 * 10
    tight = simulated("--layer", CONV1_2, "--dataflow", "rs", "--buffer-words", "4000")
    assert tight["forward"]["dram_words"] > simulated("--layer", CONV1_2, "--dataflow", "rs")["forward"]["dram_words"]


def test_table_says_what_its_figures_are():
    result = run("--layer", CONV1_2)
    assert result.exit_code == 0
    for text in ("254,640", "37,748,736", "weight grad", "without stalls", "each tensor once"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ([], ["model: is missing", "--model"]),
        (["--model", "vgg12"], ["model='vgg12'", "vgg13"]),
        (["--model", "vgg13", "--data", "mnist"], ["data='mnist'", "cifar10"]),
        (["--model", "vgg13", "--batch", "0"], ["batch=0", "at least 1"]),
        (["--model", "vgg13", "--epochs", "0"], ["epochs=0", "at least 1"]),
        (["--model", "vgg13", "--policy", "twice"], ["policy='twice'", "once, separate"]),
        (["--model", "vgg13", "--energy", "free"], ["energy='free'", "eyeriss"]),
        (["--model", "vgg13", "--array", "0x12"], ["array=0x12", "at least 1"]),
        (["--model", "vgg13", "--second-array", "0x3"], ["second-array=0x3", "at least 1"]),
        (["--model", "vgg13", "--input", "3x8x8"], ["input", "--module"]),
        (["--model", "vgg13", "--sweep", "batch"], ["'batch'", "--sweep batch=16,64"]),
        (["--model", "vgg13", "--sweep", "size=3"], ["'size'", "batch, epochs"]),
        (["--model", "vgg13", "--sweep", "batch=a"], ["batch", "'a'", "integer"]),
        (["--model", "vgg13", "--sweep", "batch="], ["batch has no values"]),
        (["--model", "vgg13", "--search", "--pes", "-1"], ["pes=-1", "at least 1"]),
        (["--model", "vgg13", "--picture", "x.gif"], ["x.gif", ".png or .svg"]),
        (["--module", "nowhere_at_all:build"], ["nowhere_at_all", "cannot be imported"]),
        (["--module", "json:nothing"], ["json has no 'nothing'"]),
        (["--module", "json"], ["PACKAGE.FILE:FACTORY"]),
        (["--module", "json:dumps", "--model", "vgg13"], ["leave these out"]),
        (["--module", "builtins:dict"], ["gives a dict", "nn.Module"]),
        (["--layer", CONV1_2, "--model", "vgg13"], ["model", "single layer"]),
        (["--layer", CONV1_2, "--array", "0x12"], ["array=0x12", "at least 1"]),
        (["--layer", CONV1_2, "--array", "12"], ["array=12", "12x15"]),
        (["--layer", CONV1_2, "--array", "12xb"], ["array=12xb", "12x15"]),
        (["--layer", CONV1_2, "--dataflow", "xs"], ["dataflow='xs'", "ws, os, is, rs"]),
        (["--layer", CONV1_2, "--batch", "0"], ["batch=0", "at least 1"]),
        (["--layer", "c_in=64,kernel=3"], ["c_out is missing", "c_out=64"]),
        (["--layer", "c_in=64,c_out=64,size=3"], ["'size=3'", "known keys", "kernel"]),
        (["--layer", "c_in=64,c_out=64,c_in=3"], ["c_in is given twice"]),
        (["--layer", "c_in=64,c_out=64,kernel=a"], ["kernel", "'a'"]),
        (["--layer", "c_in=64,c_out=64,groups=3"], ["groups=3", "divides"]),
        (["--layer", CONV1_2, "--buffer-words", "10"], ["buffer_words", "nothing under ws", "rs"]),
        (["--layer", CONV1_2, "--dataflow", "rs", "--buffer-words", "10"], ["buffer_words=10", "give more"]),
    ],
)
def test_bad_input_names_itself_and_the_remedy(arguments, messages):
    result = run(*arguments)
    assert result.exit_code == 2
    for message in messages:
        assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_network_in_total_and_layer_by_layer():
    found = simulated("--model", "vgg13", "--data", "cifar10", "--batch", "128")
    assert found["batches"] == 90 * 391
    designs = found["designs"]
    assert list(designs) == ["baseline", "low", "efficient", "max"]
    assert 1 < designs["low"]["speed_up"] <= designs["efficient"]["speed_up"] <= designs["max"]["speed_up"] < 1.6
    for design in designs.values():
        assert len(design["layers"]) == 11
        assert sum(layer["cycles"] for layer in design["layers"]) == pytest.approx(design["cycles"], rel=1e-12)
        assert sum(layer["energy"] for layer in design["layers"]) == pytest.approx(design["energy"])
        assert sum(phase["share"] for phase in design["phases"]) == pytest.approx(1)
        mean = sum(phase["share"] * phase["batch_cycles"] for phase in design["phases"])
        assert design["cycles"] == pytest.approx(mean * found["batches"])
    assert [phase["phase"] for phase in designs["max"]["phases"]] == ["WARMUP", "GP", "BP"]


def test_network_table_says_what_its_figures_rest_on():
    result = run("--model", "vgg13", "--batch", "16", "--stalls", "--vector-lanes", "32", "--policy", "once")
    assert result.exit_code == 0, result.output
    for text in ("features.0", "baseline", "efficient", "max", "batch 16", "90 epochs", "12x15 PEs, ws", "8x10"):
        assert text in result.stdout
    for text in ("stalls on memory at 16 words", "on 32 lanes", "policy 'once'", "table 'eyeriss'", "4x4"):
        assert text in result.stdout
    assert "no stalls" in run("--model", "vgg13").stdout


def test_a_module_of_ones_own(tmp_path, monkeypatch):
    lines = (
        "from torch import nn",
        "def build():",
        "    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.Linear(5, 2))",
    )
    (tmp_path / "own_nets_for_simulate.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    found = simulated("--module", "own_nets_for_simulate:build", "--input", "3x4x4", "--batch", "8", "--epochs", "30")
    assert [layer["layer"] for layer in found["designs"]["baseline"]["layers"]] == ["1", "2"]
    result = run("--module", "own_nets_for_simulate:build", "--input", "3x4x5", "--batch", "8")
    assert result.exit_code == 2
    assert "cannot be traced: Linear 1" in result.stderr


def test_sweep_as_table_csv_and_picture(tmp_path):
    files = ["--csv", str(tmp_path / "sweep.csv"), "--picture", str(tmp_path / "sweep.svg")]
    over = ["--sweep", "batch=16,128", "--sweep", "array=12x15,18x10"]
    found = simulated("--model", "vgg13", *over, *files)
    assert [(point["batch"], point["array"]) for point in found["points"]] == [
        ("16", "12x15"),
        ("16", "18x10"),
        ("128", "12x15"),
        ("128", "18x10"),
    ]
    alone = simulated("--model", "vgg13", "--batch", "16", "--array", "18x10")
    swept = found["points"][1]["designs"]
    for name, design in alone["designs"].items():
        assert swept[name]["speed_up"] == design["speed_up"]
        assert swept[name]["energy_saved"] == design["energy_saved"]
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert len(rows) == 4 * 4
    assert float(rows[-1]["speed_up"]) == found["points"][-1]["designs"]["max"]["speed_up"]
    assert b"<svg" in (tmp_path / "sweep.svg").read_bytes()
    table = run("--model", "vgg13", *over)
    assert "18x10" in table.stdout


def test_search_finds_the_fastest_array():
    found = simulated("--model", "vgg13", "--batch", "8", "--search", "--pes", "24", "--dataflow", "ws")["found"]
    best = found[0]
    assert best["rows"] * best["columns"] <= 24
    others = simulated("--model", "vgg13", "--batch", "8", "--sweep", "array=1x24,2x12,3x8,4x6,6x4,8x3,12x2,24x1,5x4")
    for point in others["points"]:
        assert best["designs"]["baseline"]["batch_cycles"] <= point["designs"]["baseline"]["batch_cycles"]
    assert (
        "the best arrays of at most 24 PEs"
        in run("--model", "vgg13", "--batch", "8", "--search", "--pes", "24", "--dataflow", "os").stdout
    )


def test_csv_and_pictures_of_a_network(tmp_path):
    run(
        *("--model", "vgg13", "--batch", "16", "--csv", str(tmp_path / "a.csv")),
        *("--picture", str(tmp_path / "layers.png"), "--timeline", str(tmp_path / "time.svg")),
    )
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert len(rows) == 4 * 11
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
    assert b"GP batch" in (tmp_path / "time.svg").read_bytes()


def test_simulating_a_frozen_network_does_not_wait_for_torch():
    code = (
        "import sys; from adagp.cli import app\n"
        "try: app(['simulate', '--model', 'vgg13', '--data', 'cifar10', '--json'])\n"
        "except SystemExit as end: assert not end.code\n"
        "slow = {'torch', 'matplotlib', 'sklearn'} & set(sys.modules); assert not slow, slow"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["network"] == "vgg13 on cifar10"
