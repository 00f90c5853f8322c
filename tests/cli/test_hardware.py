import json
import re
import sys
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adagp.accelerator import Design, LayerOp, LayerShape, Pass
from adagp.accelerator.rtl import checks, golden
from adagp.accelerator.rtl.liberty import LIBERTY
from adagp.accelerator.rtl.measure import MeasuredBatch, account, run_small, small_cores
from adagp.accelerator.rtl.speedup import Clocked
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.tools import YOSYS
from adagp.accelerator.rtl.training import TrainedBatch, initial_network
from adagp.cli import app
from adagp.schedules import Phase

needs_cells = pytest.mark.skipif(
    not LIBERTY.is_file(), reason="needs standard cells, which no Python package has: apt-get install qflow-tech-osu018"
)


def run(*arguments):
    return CliRunner().invoke(app, ["hardware", *arguments])


def test_check_tells_that_all_is_exact_and_on_time():
    done = run("check", "--array", "4x4", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["checks"]
    assert len(found) == 7
    assert all(check["passed"] and check["exact"] and check["cycles"] == check["model_cycles"] for check in found)


def test_check_fails_where_the_rtl_is_wrong(monkeypatch):
    true, run_checks = golden.operands, checks.run_checks
    monkeypatch.setattr(checks, "run_checks", lambda *sizes: [next(run_checks(*sizes))])  # the first is enough
    monkeypatch.setattr(golden, "operands", lambda sums, shift, width=16: true(sums, shift, width) ^ 1)
    done = run("check", "--array", "4x4")
    assert done.exit_code == 1
    assert "NO" in done.stdout
    assert "does not compute what it should: convolution, forward" in done.stderr


@pytest.fixture
def small_memories(monkeypatch):
    """Designs of the size that is asked for, but with memories that take no time to write down."""

    def small(design, array, second_array):
        sizes = zip(small_cores(design).items(), (array, second_array), strict=False)
        return {unit: replace(core, rows=rows, columns=columns) for (unit, core), (rows, columns) in sizes}

    monkeypatch.setattr("adagp.accelerator.rtl.top.geometries", small)


@pytest.fixture
def small_layer(monkeypatch):
    """A network of one small layer, and a core that is quick to clock in any simulator."""
    layer = LayerOp("tiny", "convolution", LayerShape(2, 3, (4, 4), (3, 3)), tuple(Pass), covered=True)
    core = replace(small_cores(Design.LOW)["main"], pool_depth=16)
    monkeypatch.setattr("adagp.accelerator.networks.network", lambda model, data, batch: [layer])
    monkeypatch.setattr("adagp.accelerator.rtl.top.geometries", lambda *sizes: {"main": core})
    monkeypatch.setattr("adagp.accelerator.rtl.simulators.has_verilator", lambda: False)


@pytest.mark.usefixtures("small_layer")
def test_run_clocks_a_layer_and_compares_it(tmp_path):
    waves = tmp_path / "tiny.vcd"
    done = run("run", "--layer", "tiny", "--design", "low", "--vcd", str(waves), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["bit_exact"]
    assert found["cycles"] == found["model_cycles"]
    assert found["moved_words"] > 2 * 16
    text = waves.read_text()
    assert "pe_0_0" in text
    assert len(text) > 10_000
    assert set(found["use"]["main"]) == {"pes", "array", "loader", "drainer"}


@pytest.mark.usefixtures("small_layer")
def test_run_fails_where_a_bit_or_a_cycle_is_wrong(monkeypatch):
    from adagp.accelerator.rtl.layer_run import LayerProgram

    for wrong, message in (((False, 5, 5), "does not compute layer tiny"), ((True, 5, 5), "takes 5 cycles")):
        monkeypatch.setattr(LayerProgram, "run", lambda *sizes, wrong=wrong: wrong)
        done = run("run", "--layer", "tiny", "--design", "low")
        assert done.exit_code == 1
        assert message in done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.usefixtures("small_layer")
def test_waves_tell_and_draw_what_a_run_did(tmp_path):
    vcd, picture = tmp_path / "tiny.vcd", tmp_path / "tiny.svg"
    assert run("run", "--layer", "tiny", "--design", "low", "--batch", "1", "--vcd", str(vcd)).exit_code == 0
    done = run("waves", str(vcd), "--picture", str(picture), "--first", "30", "--cycles", "40")
    assert done.exit_code == 0, done.output
    assert "streams inputs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(picture))
    assert "loads a memory" in picture.read_text()
    assert "streams inputs" not in picture.read_text()  # not in these cycles
    found = json.loads(run("waves", str(vcd), "--json").stdout)
    assert set(found["main"]["rows"]) == {"loader", "array", "drainer", "descriptors", "requests", "answers", "writes"}
    late = run("waves", str(vcd), "--first", "999999")
    assert late.exit_code == 2
    assert "first=999999: there are" in late.stderr


@pytest.mark.parametrize(("exact", "cycles"), [(True, 5), (False, 7), (True, 7)])
def test_report_fails_where_a_bit_or_a_cycle_is_wrong(exact, cycles, monkeypatch):
    def batch(design, phase):
        wrong = (design, phase) == (Design.LOW, Phase.GP)
        return MeasuredBatch(design, phase, exact or not wrong, cycles if wrong else 7, 7, 3, 2, 99)

    monkeypatch.setattr("adagp.accelerator.rtl.measure.measure", batch)
    for arguments in ((), ("--json",)):
        done = run("report", *arguments)
        assert done.exit_code == (0 if exact and cycles == 7 else 1)
        assert ("formulas give: GP on low\n" in done.stderr) == (done.exit_code == 1)
        assert max(map(len, done.stdout.splitlines())) <= 80 or arguments


def test_a_wrong_bit_of_a_batch_is_seen():
    memory, dram, traces = run_small(Design.BASELINE, Phase.BP)
    assert account(Design.BASELINE, Phase.BP, memory, dram, traces).passed
    dram[memory.layers[1].weights] ^= 1
    assert not account(Design.BASELINE, Phase.BP, memory, dram, traces).passed


def test_coverage_counts_descriptors_and_says_that_it_clocks_nothing(monkeypatch):
    monkeypatch.setattr("adagp.accelerator.rtl.testbench.Bench.run", lambda *arguments: pytest.fail("it clocks"))
    done = run("coverage")
    assert done.exit_code == 0, done.output
    assert "Compiled descriptors: 72 of 72 kinds occur" in done.stdout
    assert "counted, not clocked" in " ".join(done.stdout.split())
    assert "clocks nothing" in run("coverage", "--help").stdout


@pytest.fixture
def small_cnn(monkeypatch):
    """The small CNN smaller still, on cores that Amaranth's simulator clocks in seconds; Verilator is hidden."""
    layers = (Convolution(1, 2, (4, 4), (3, 3), (2, 2), (1, 1)), Convolution(8, 3))
    rng = np.random.default_rng(0)

    def images(name, root, count):
        return rng.integers(-300, 300, (count, 1, 4, 4)), rng.integers(0, 3, count)

    monkeypatch.setattr("adagp.accelerator.rtl.training_data.fixed_images", images)
    monkeypatch.setattr("adagp.accelerator.rtl.simulators.has_verilator", lambda: False)
    monkeypatch.setattr("adagp.accelerator.rtl.testbench.Bench.cycles_per_second", 1)
    for module in ("training", "speedup"):
        monkeypatch.setattr(f"adagp.accelerator.rtl.{module}.CNN", layers)
        monkeypatch.setattr(f"adagp.accelerator.rtl.{module}.initial_network", partial(initial_network, grid=2))
    for module in ("top", "speedup"):
        monkeypatch.setattr(f"adagp.accelerator.rtl.{module}.geometries", small_cores)


SLOWLY = "verilator is missing, and Amaranth's simulator takes roughly"


@pytest.mark.usefixtures("small_cnn")
def test_train_goes_without_verilator():
    done = run("train", "--design", "low", "--batches", "2", "--batch", "1", "--warmup", "1")
    assert done.exit_code == 0, done.output  # every bit and every cycle is right
    assert all(text in done.stdout for text in ("a BP batch:", "a GP batch:"))
    assert SLOWLY in done.stderr


@pytest.mark.usefixtures("small_cnn")
def test_speedup_goes_without_verilator(monkeypatch):
    cases = [(Design.BASELINE, Phase.BP), (Design.LOW, Phase.BP), (Design.LOW, Phase.GP)]
    monkeypatch.setattr("adagp.accelerator.rtl.speedup.CASES", cases)
    done = run("speedup", "--layers", "none", "--cnn-batch", "1")
    assert done.exit_code == 0, done.output
    assert "low" in done.stdout
    assert SLOWLY in done.stderr


def test_train_tells_losses_and_fails_where_a_bit_is_wrong(monkeypatch):
    class Training:
        def __init__(self, *sizes):
            pass

        def model_cycles(self, phase):
            return 5

        def batch(self, bench, images, labels, phase):
            return TrainedBatch(phase, 2.0, bit_exact=phase is Phase.BP, cycles=5, model_cycles=5)

    monkeypatch.setattr("adagp.accelerator.rtl.training_data.fixed_images", lambda *sizes: ([], []))
    monkeypatch.setattr("adagp.accelerator.rtl.training.RtlTraining", Training)
    done = run("train", "--batches", "2", "--warmup", "2")
    assert done.exit_code == 0, done.output
    assert "2.000" in done.stdout
    done = run("train", "--batches", "3", "--warmup", "2", "--json")
    assert done.exit_code == 1
    assert [each["phase"] for each in json.loads(done.stdout)["batches"]] == ["BP", "BP", "GP"]
    assert "batch 2: the RTL does not do" in done.stderr


@needs_cells
@pytest.mark.usefixtures("small_memories")
def test_synth_gives_one_object_of_resources():
    done = run("synth", "--design", "low", "--target", "osu018", "--array", "2x1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["design"] == "low"
    assert found["cells"] > found["sequential_cells"] > 2 * 80  # of two PEs
    assert found["area_um2"] > found["combinational_um2"] > 0
    assert found["memory_bits"] == 2 * 512 * 16 + (256 + 128) * 16 + (2 * 64 + 8) * 48
    modules = found["modules"]
    assert modules["pe_16_48"]["number"] == 2
    assert sum(each["number"] * each["cells"] for each in modules.values()) == found["cells"]
    assert sum(each["number"] * each["area_um2"] for each in modules.values()) == pytest.approx(
        found["area_um2"], abs=100
    )


@pytest.mark.usefixtures("small_memories")
def test_export_writes_a_file_for_each_design(tmp_path):
    done = run("export", "--verilog", str(tmp_path / "out"), "--array", "2x2", "--second-array", "2x2", "--json")
    assert done.exit_code == 0, done.output
    files = json.loads(done.stdout)["files"]
    designs = ["baseline.v", "efficient.v", "low.v", "max.v"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*designs, "waivers.vlt"]
    assert len(files) == 5


def test_draw_writes_a_picture_of_the_sizes_asked_for(tmp_path):
    pictures = []
    for array in ("12x15", "4x3"):
        done = run("draw", "--out", str(tmp_path / f"{array}.png"), "--array", array)
        assert done.exit_code == 0, done.output
        pictures.append((tmp_path / f"{array}.png").read_bytes())
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("synth", "--design", "huge"), "design='huge': is unknown; choose one of baseline, low, efficient, max"),
        (("synth", "--target", "asic"), "target='asic': is unknown; choose one of xc7, osu018"),
        (("synth", "--array", "12"), "array=12: is not ROWSxCOLUMNS"),
        (("synth", "--array", "axb"), "array=axb: is not ROWSxCOLUMNS"),
        (("synth", "--array", "0x15"), "array=0x15: has no PE"),
        (("synth", "--array", "70000x2"), "array=70000x2: has more banks than a descriptor names"),
        (("synth", "--array", "0x15", "--target", "osu018"), "array=0x15: has no PE"),
        (("export", "--verilog", "out", "--array", "0x15"), "array=0x15: has no PE"),
        (("draw", "--out", "nowhere/designs.png"), "there is no folder 'nowhere'; make it first"),
        (("check", "--array", "1x1"), "array=1x1"),
        (("run", "--model", "vgg14"), "vgg14"),
        (("run", "--layer", "features.1"), "layer='features.1': is not in vgg13; choose one of features.0, features.3"),
        (("run", "--phase", "up"), "phase='up': is unknown; choose one of gp, bp"),
        (("run", "--design", "baseline"), "layer features.3: phase=gp: the baseline has no predictor"),
        (("run", "--bandwidth", "0"), "bandwidth=0: must be at least 1"),
        (("run", "--latency", "0"), "latency=0: must be between 1 and 10,000"),
        (("run", "--batch", "0"), "batch=0"),
        (("run", "--vcd", "nowhere/waves.vcd"), "there is no folder 'nowhere'; make it first"),
    ],
)
def test_wrong_input_is_named_before_a_missing_program(arguments, message, no_yosys, monkeypatch):
    monkeypatch.setattr("adagp.accelerator.rtl.liberty.LIBERTY", Path("nowhere.lib"))
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.usefixtures("small_memories")
def test_a_folder_that_cannot_be_made_is_named_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr("adagp.accelerator.rtl.verilog.run_yosys", lambda *script: pytest.fail("worked in vain"))
    (tmp_path / "out").write_text("")
    done = run("export", "--verilog", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert f"folder '{tmp_path / 'out'}' cannot be made: File exists; choose another folder" in done.stderr


@pytest.mark.parametrize("table", [4, 5])
def test_wrong_sizes_of_a_table_are_named_before_a_missing_program(table, no_yosys, monkeypatch):
    monkeypatch.setattr("adagp.accelerator.rtl.liberty.LIBERTY", Path("nowhere.lib"))
    done = CliRunner().invoke(app, ["reproduce", f"table{table}", "--array", "70000x2"])
    assert done.exit_code == 2
    assert "array=70000x2: has more banks than a descriptor names" in done.stderr


@pytest.mark.usefixtures("small_memories")
def test_synth_names_the_version_of_yosys_and_where_the_resources_are(monkeypatch, tmp_path):
    """As if a PE had one LUT, and nothing else had any."""
    monkeypatch.setattr(
        "adagp.accelerator.rtl.synthesis._cells",
        lambda name, text: Counter(["LUT2"] if name.startswith("pe_") else re.findall(r"cell \\([a-z]\w+) ", text)),
    )
    arguments = ("synth", "--design", "baseline", "--array", "2x1", "--picture", str(tmp_path / "lut.svg"))
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["yosys"] == YOSYS.version()
    assert found["lut"] == 2
    numbers = {name.split("_")[0]: (each["number"], each["lut"]) for name, each in found["modules"].items()}
    assert {kind: numbers[kind] for kind in ("pe", "array", "core", "lane", "dispatcher")} == {
        "pe": (2, 1), "array": (1, 0), "core": (1, 0), "lane": (1, 0), "dispatcher": (1, 0),
    }  # fmt: skip
    assert "2 x 1: 100.0 %" in (tmp_path / "lut.svg").read_text()
    assert f"xc7, yosys {YOSYS.version()}" in run(*arguments).stdout


@pytest.mark.usefixtures("small_memories", "no_yosys")
def test_without_yosys_the_package_is_named(tmp_path):
    for arguments in (("synth",), ("export", "--verilog", str(tmp_path / "out"))):
        done = run(*arguments)
        assert done.exit_code == 1
        assert "pip install 'adagp[hardware]'" in done.stderr
        assert "apt-get install yosys" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_amaranth_the_extra_is_named(monkeypatch):
    for name in ("checks", "designs", "synthesis"):
        monkeypatch.delitem(sys.modules, f"adagp.accelerator.rtl.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "amaranth", None)
    monkeypatch.setitem(sys.modules, "amaranth.lib.wiring", None)
    done = run("synth")
    assert done.exit_code == 1
    assert "pip install 'adagp[hardware]'" in done.stderr


@pytest.fixture
def clocked(monkeypatch):
    """`speedup` with clocks that count up instead of a simulator; the cases that were asked for."""
    asked = []

    def layer(model, op, design, phase, timing, tell, warn):
        asked.append((op.name, design.value, phase.value))
        if len(asked) == 3:
            raise KeyboardInterrupt
        cycles = 100 * len(asked)
        return Clocked(model, op.name, op.shape.batch, design.value, phase.value, True, cycles, cycles, cycles)

    monkeypatch.setattr("adagp.accelerator.rtl.speedup.clock_layer", layer)
    return asked


def test_an_interrupted_speedup_goes_on_where_it_was(clocked, tmp_path):
    arguments = ("speedup", "--cnn-batch", "0", "--layers", "features.3", "--file", str(tmp_path / "found.json"))
    assert run(*arguments).exit_code != 0
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    assert len(clocked) == 8  # seven cases, one of them twice
    assert len(set(clocked)) == 7
    assert json.loads(done.stdout) == json.loads((tmp_path / "found.json").read_text())
    assert run(*arguments).exit_code == 0
    assert len(clocked) == 8
    other = run(*arguments, "--latency", "5")
    assert other.exit_code == 2
    assert "was made with" in other.stderr


def test_a_speedup_fails_where_a_batch_is_not_exact(clocked, tmp_path):
    file = tmp_path / "found.json"
    batch = Clocked("vgg13", "features.3", 8, "baseline", "BP", False, 5, 5, 5)
    setting = {"data": "cifar10", "bandwidth_words": 16, "latency_cycles": 20}
    file.write_text(json.dumps({**setting, "batches": [asdict(batch)]}))
    done = run("speedup", "--cnn-batch", "0", "--layers", "none", "--file", str(file))
    assert done.exit_code == 1
    assert "vgg13 features.3, BP on baseline" in done.stderr
    file.write_text("[]")
    assert "has no clocked batches" in run("speedup", "--layers", "none", "--file", str(file)).stderr
