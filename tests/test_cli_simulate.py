import json

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
        (["--layer", CONV1_2, "--array", "0x12"], ["array=0x12", "at least 1"]),
        (["--layer", CONV1_2, "--array", "12"], ["array=12", "12x15"]),
        (["--layer", CONV1_2, "--array", "12xb"], ["array", "'b'", "integer"]),
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
