import os
import re
from pathlib import Path

import pytest

from adagp.accelerator import COST_TABLES, Array, Design, Machine, PredictorShape, Setting, network, read_machine
from adagp.accelerator.setting import MACHINE_KEYS, SWEPT, changed
from adagp.accelerator.sweep import sweep

EVERY_KEY = """
array = "6x7"
second-array = "2x3"
dataflow = "rs"
grid = 5
channels = 2
policy = "once"
bandwidth = 8
buffer-words = 5000
register-words = 300
vector-lanes = 4
stalls = true
tiles = false
latency = 9
"""


def vgg13(batch):
    return network("vgg13", "cifar10", batch)


def test_results_compare_every_design_with_the_baseline():
    found = Setting(16, 30).simulate(vgg13)
    table = COST_TABLES["horowitz"]
    plain = found[Design.BASELINE]
    assert found.baseline is plain
    assert list(found) == list(Design)
    for design, run in found.items():
        assert found.speed_up(design) == plain.cycles / run.cycles
        assert found.energy_saved(design, table) == 1 - run.energy(table) / plain.energy(table)
        assert run.batch_cycles * run.count == pytest.approx(run.cycles)
    assert found.speed_up(Design.BASELINE) == 1
    assert found.speed_up(Design.MAX) > 1.1


def test_a_file_describes_every_part_of_a_machine(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(EVERY_KEY)
    assert set(re.findall(r"^[\w-]+", EVERY_KEY, re.MULTILINE)) == set(MACHINE_KEYS)
    assert read_machine(file) == Machine(
        array=Array(6, 7, 5000, 300),
        dataflow="rs",
        predictor=PredictorShape(5, 2),
        second_array=Array(2, 3, 5000, 300),
        dram_words_per_cycle=8,
        dram_latency_cycles=9,
        stalls=True,
        policy="once",
        vector_lanes=4,
    )
    file.write_text("")
    assert read_machine(file) == Machine()


def test_the_file_of_the_docs_is_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "accelerator.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "small.toml").write_text(text)
    machine = read_machine(tmp_path / "small.toml")
    assert (str(machine.array), str(machine.second_array), machine.dataflow) == ("8x8", "4x4", "os")
    assert (machine.stalls, machine.policy, machine.dram_words_per_cycle) == (True, "momentum", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrays = '12x15'", r"'arrays' is unknown; known keys: array, second-array, dataflow"),
        ("[predictor]\ngrid = 3", r"'predictor' is unknown; known keys"),
        ("batch = 3", r"'batch' is unknown"),
        ("grid = '4'", r"grid = '4' is not an integer"),
        ("grid = 4.0", r"grid = 4\.0 is not an integer"),
        ("grid = true", r"grid = True is not an integer"),
        ("array = 12", r"array = 12 is not a text"),
        ("stalls = 1", r"stalls = 1 is not true or false"),
        ("array = '0x3'", r"array=0x3: has no PE"),
        ("second-array = 'x'", r"second-array=x: is not ROWSxCOLUMNS"),
        ("dataflow = 'xs'", r"dataflow='xs': is unknown; choose one of ws"),
        ("policy = 'free'", r"policy='free': is unknown"),
        ("bandwidth = 0", r"bandwidth=0: must be at least 1"),
        ("buffer-words = -1", r"buffer_words=-1"),
        ("array = ", r"is not TOML"),
        ("\0", r"is not TOML"),
        ("a = " + "[" * 100_000, r"is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_machine(file)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # which would keep a reader waiting
    for name in ("", "absent.toml", "pipe", "n" * 300):
        with pytest.raises(ValueError, match=r"machine: .* (cannot be read|is not a file)"):
            read_machine(tmp_path / name)
    (tmp_path / "latin.toml").write_bytes(b"array = '\xff'")
    with pytest.raises(ValueError, match=r"latin\.toml' is not TOML"):
        read_machine(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", ["buffer-words", "register-words"])
def test_both_arrays_have_the_same_memories(name):
    machine = changed(Setting(), name, 3000).machine
    for array in (machine.array, machine.second_array):
        assert getattr(array, name.replace("-", "_")) == 3000


def test_a_sweep_gives_what_the_changed_setting_gives():
    setting = Setting(8, 30)
    (point,) = sweep(vgg13, setting, {"vector-lanes": ["4"]}, COST_TABLES["eyeriss"])
    alone = changed(setting, "vector-lanes", 4).simulate(vgg13)
    assert point.cycles == {design: run.batch_cycles for design, run in alone.items()}
    assert point.cycles != {design: run.batch_cycles for design, run in setting.simulate(vgg13).items()}


def test_every_number_and_name_can_be_swept_over():
    assert set(SWEPT) == {"batch", "epochs", *MACHINE_KEYS} - {"stalls", "tiles"}
