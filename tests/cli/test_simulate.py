import csv
import json
import os
import re
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


def test_tables_of_a_network_fit_a_terminal_of_80_columns():
    result = CliRunner().invoke(app, ["simulate", "network", "--model", "vgg13"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


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
        (["--model", "vgg13", "--sweep", "batch"], ["'batch'", "batch=16,64"]),
        (["--model", "vgg13", "--sweep", "size=3"], ["'size'", "batch, epochs"]),
        (["--model", "vgg13", "--sweep", "batch=a"], ["batch", "'a'", "integer"]),
        (["--model", "vgg13", "--sweep", "batch="], ["batch has no values"]),
        (["--model", "vgg13", "--search", "--pes", "-1"], ["pes=-1", "at least 1"]),
        (["--model", "vgg13", "--method", "magic"], ["method='magic'", "adagp, coarse, progressive"]),
        (["--model", "vgg13", "--scale", "0"], ["scale = 0.0", "above 0"]),
        (["--model", "vgg13", "--scale", "1.5"], ["scale = 1.5", "at most 1"]),
        (["--model", "vgg13", "--scale", "nan"], ["scale = nan", "at most 1"]),
        (["--model", "vgg13", "--scale", "1"], ["scale=1", "below 1"]),
        (["--model", "vgg13", "--levels", "0.5:1"], ["levels", "--method progressive"]),
        (["--model", "vgg13", "--method", "progressive", "--levels", "0.5"], ["levels = '0.5'", "0.5:0.6,1:0.4"]),
        (["--model", "vgg13", "--method", "progressive", "--levels", "0.5:0.6,1:0.6"], ["levels", "add up to 1"]),
        (["--model", "transformer", "--data", "multi30k", "--scale", "0.5"], ["scale=0.5", "convolutional"]),
        (["--model", "inception_v3", "--data", "imagenet", "--method", "coarse"], ["scale=0.5", "AuxLogits.conv1"]),
        (["--model", "vgg13", "--picture", "x.gif"], ["x.gif", ".png or .svg"]),
        (["--module", "nowhere_at_all:build"], ["nowhere_at_all", "cannot be imported"]),
        (["--module", "json:nothing"], ["json has no 'nothing'"]),
        (["--module", "json"], ["names no function", "mypackage.nets:build"]),
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
        (["layer"], ["layer: is missing", "c_in=64"]),
        (["layer", CONV1_2, "--layer", CONV1_2], ["layer: is given twice"]),
        (["sweep", "--model", "vgg13"], ["nothing is varied", "batch=16,64"]),
        (["sweep", "batch=1", "--model", "vgg13", "--batch", "3"], ["batch", "leave one out"]),
        (["--model", "vgg13", "--sweep", "array=2x2", "--array", "3x3"], ["array", "leave one out"]),
        (["--model", "vgg13", "--register-words", "10"], ["register_words", "nothing under ws", "rs"]),
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


IDLE = [
    (["--model", "vgg13", "--pes", "3"], "--pes", "network", "search"),
    (["--model", "vgg13", "--sweep", "batch=1", "--timeline", "a.png"], "--timeline", "sweep", "network"),
    (["--model", "vgg13", "--sweep", "batch=1", "--pes", "3"], "--pes", "sweep", "search"),
    (["--model", "vgg13", "--search", "--timeline", "a.png"], "--timeline", "search", "network"),
    (["--model", "vgg13", "--search", "--picture=a.png"], "--picture", "search", "network"),
    (["--model", "vgg13", "--search", "--energy", "ddr3"], "--energy", "search", "network"),
    (["--search", "--model", "vgg13", "--sweep", "batch=1"], "--search", "sweep", "search"),
    *(
        (["--layer", CONV1_2, option, *value], option, "a single layer", mode)
        for option, value, mode in [
            ("--model", ["vgg13"], "network"),
            ("--search", [], "search"),
            ("--sweep", ["batch=1"], "sweep"),
            ("--pes", ["3"], "search"),
            ("--picture", ["a.png"], "network"),
            ("--timeline", ["a.png"], "network"),
            ("--epochs", ["3"], "network"),
            ("--scale", ["0.5"], "network"),
            ("--stalls", [], "network"),
            ("--grid", ["3"], "network"),
            ("--energy", ["ddr3"], "network"),
        ]
    ),
]


@pytest.mark.parametrize(("arguments", "option", "mode", "owner"), IDLE, ids=lambda value: str(value)[:60])
def test_an_option_without_effect_is_refused_by_name(arguments, option, mode, owner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"adagp: error: {option}: has no effect on ")
    assert mode in result.stderr
    assert f"use 'adagp simulate {owner}'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--model", "vgg13", "--epochs", "30"], ["network", "--model", "vgg13", "--epochs", "30"]),
        (["--layer", CONV1_2, "--batch", "3"], ["layer", CONV1_2, "--batch", "3"]),
        ([f"--layer={CONV1_2}"], ["layer", "--layer", CONV1_2]),
        (
            ["--sweep", "batch=1,2", "--model", "vgg13", "--sweep=grid=2,3"],
            ["sweep", "batch=1,2", "grid=2,3", "--model", "vgg13"],
        ),
        (
            ["--model", "vgg13", "--search", "--pes", "9", "--dataflow", "ws"],
            ["search", "--model", "vgg13", "--pes", "9", "--dataflow", "ws"],
        ),
    ],
)
def test_the_old_spelling_gives_the_same(old, new):
    assert simulated(*old) == simulated(*new)


def test_help_is_there_for_every_mode():
    whole = run("--help").stdout
    for mode in ("network", "layer", "sweep", "search"):
        assert mode in whole
        assert f"simulate {mode}" in run(mode, "--help").stdout
    assert "ISCA 2016" in whole
    assert run("nonsense").exit_code == 2


def test_a_machine_file_and_options_beside_it(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('array = "6x8"\ndataflow = "os"\npolicy = "once"\nstalls = true\ngrid = 2\n')
    small = ["--model", "vgg13", "--batch", "8"]
    options = ["--array", "6x8", "--dataflow", "os", "--policy", "once", "--stalls", "--grid", "2"]
    assert simulated(*small, "--machine", str(file)) == simulated(*small, *options)
    beside = simulated(*small, "--machine", str(file), "--array", "12x15", "--no-stalls")["machine"]
    assert (beside["array"]["rows"], beside["dataflow"], beside["stalls"]) == (12, "os", False)
    layer = simulated("layer", CONV1_2, "--machine", str(file))
    assert layer == simulated("layer", CONV1_2, "--array", "6x8", "--dataflow", "os")
    found = simulated("search", *small, "--machine", str(file))
    assert found["pes"] == 48
    assert {best["dataflow"] for best in found["found"]} == {"ws", "os", "is", "rs"}
    assert (found["given"]["dataflow"], found["given"]["rows"]) == ("os", 6)
    swept = simulated("sweep", "array=6x8", *small, "--machine", str(file))["points"][0]["designs"]
    assert swept["max"]["speed_up"] == simulated(*small, *options)["designs"]["max"]["speed_up"]


@pytest.mark.parametrize("content", [b"array = ", b"\xff", b"size = 3", b"[array]\nrows = 3", None])
@pytest.mark.parametrize("mode", [["layer", CONV1_2], ["network", "--model", "vgg13"]])
def test_a_damaged_machine_file_is_one_line(tmp_path, content, mode):
    file = tmp_path / "mine.toml"
    if content is not None:
        file.write_bytes(content)
    result = run(*mode, "--machine", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith("adagp: error: machine: ")
    assert "mine.toml" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_search_shows_the_given_array_under_the_given_dataflow():
    found = simulated("--model", "vgg13", "--batch", "8", "--search", "--pes", "9", "--dataflow", "is")
    assert [best["dataflow"] for best in found["found"]] == ["is"]
    alone = simulated("--model", "vgg13", "--batch", "8", "--dataflow", "is")
    assert found["given"]["dataflow"] == "is"
    assert found["given"]["designs"]["max"]["speed_up"] == alone["designs"]["max"]["speed_up"]


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


def test_a_coarse_batch_is_beside_bp_and_gp_on_every_design():
    found = simulated("--model", "resnet20", "--batch", "16", "--scale", "0.75")["batch_kinds"]
    assert list(found) == ["baseline", "low", "efficient", "max"]
    for design, batches in found.items():
        labels = [batch["batch"] for batch in batches]
        assert labels == (["BP", "BP@0.75"] if design == "baseline" else ["BP", "GP", "BP@0.75"])
        full, coarse = batches[0], batches[-1]
        assert 0.5 < coarse["cycles"] / full["cycles"] < 0.7
        assert 0.5 < coarse["energy"] / full["energy"] < 0.8
        assert coarse["cycles"] == found["baseline"][-1]["cycles"]
    table = run("--model", "resnet20", "--batch", "16").stdout
    for design in found:
        assert re.search(rf"{design} +BP@0\.5 +4\.733M +25\.6 +2\.033G", table)
    words = run("--model", "transformer", "--data", "multi30k", "--batch", "2").stdout
    assert "no coarse batch: scale=0.5" in words
    assert "BP@0.5" not in words


def test_trainings_with_coarse_batches():
    small = ["--model", "resnet20", "--batch", "16", "--epochs", "30"]
    adagp, coarse, progressive, short = (
        simulated(*small, *more)
        for more in (
            [],
            ["--method", "coarse"],
            ["--method", "progressive"],
            ["--method", "progressive", "--levels", "0.5:0.2,1:0.8"],
        )
    )
    assert [each["method"] for each in (adagp, coarse, progressive)] == ["adagp", "coarse", "progressive"]
    phases = coarse["designs"]["max"]["phases"]
    assert {(phase["phase"], phase["scale"]) for phase in phases} == {("WARMUP", 1), ("BP", 0.5), ("BP", 1)}
    shares = {phase["phase"]: phase["share"] for phase in adagp["designs"]["max"]["phases"]}
    assert next(phase["share"] for phase in phases if phase["scale"] < 1) == shares["GP"]
    for found in (coarse, progressive, short):
        batch = {each["batch"]: each["cycles"] for each in found["batch_kinds"]["baseline"]}
        cheap = sum(phase["share"] for phase in found["designs"]["low"]["phases"] if phase["scale"] < 1)
        expected = batch["BP"] / (cheap * batch["BP@0.5"] + (1 - cheap) * batch["BP"])
        for design in ("low", "efficient", "max"):
            assert found["designs"][design]["speed_up"] == pytest.approx(expected)
            assert 0 < found["designs"][design]["energy_saved"] < 0.5
    told = run(*small, "--method", "progressive").stdout
    assert "60 % at 0.5, 40 % at 1" in told


def test_a_module_of_ones_own(tmp_path, monkeypatch):
    lines = (
        "from torch import nn",
        "def build():",
        "    print('this does not belong into JSON')",
        "    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.Linear(5, 2))",
    )
    (tmp_path / "own_nets_for_simulate.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    found = simulated("--module", "own_nets_for_simulate:build", "--input", "3x4x4", "--batch", "8", "--epochs", "30")
    assert [layer["layer"] for layer in found["designs"]["baseline"]["layers"]] == ["1", "2"]
    assert [batch["batch"] for batch in found["batch_kinds"]["max"]] == ["BP", "GP"]
    result = run("--module", "own_nets_for_simulate:build", "--input", "3x4x5", "--batch", "8")
    assert result.exit_code == 2
    assert "cannot be traced: Linear 1" in result.stderr


def test_a_module_that_takes_integers(tmp_path, monkeypatch):
    lines = (
        "from torch import nn",
        "class build(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)",
        "    def forward(self, left, right):",
        "        return self.out(self.words(left)).mean(1) + self.out(self.words(right)).mean(1)",
    )
    (tmp_path / "own_tokens_for_simulate.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    module = ("--module", "own_tokens_for_simulate:build", "--batch", "2", "--epochs", "30")
    few, turned, many = (simulated(*module, "--input", f"int:{a},int:{b}") for a, b in ((12, 24), (24, 12), (24, 24)))
    assert {layer["layer"] for layer in few["designs"]["baseline"]["layers"]} == {"out"}
    cycles = [found["designs"]["baseline"]["cycles"] for found in (few, turned, many)]
    assert cycles[0] == cycles[1] < cycles[2]
    result = run(*module, "--input", "16,20")
    assert result.exit_code == 2
    assert "cannot be traced" in result.stderr
    assert "is not an integer" in run(*module, "--input", "long:16").stderr


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


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--model", "vgg13", "--data", "cifar10", "--json"], "vgg13 on cifar10"),
        (["--layer", CONV1_2, "--json"], "forward"),
        (["layer", CONV1_2, "--dataflow", "rs", "--json"], "forward"),
        (["--help"], "Usage"),
        (["layer", "--help"], "Usage"),
        (["network", "--help"], "Usage"),
    ],
)
def test_simulating_does_not_wait_for_torch(arguments, printed):
    code = (
        "import sys; from adagp.cli import app\n"
        f"try: app(['simulate', *{arguments!r}])\n"
        "except SystemExit as end: assert not end.code\n"
        "slow = {'torch', 'matplotlib', 'sklearn'} & set(sys.modules); assert not slow, slow"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
