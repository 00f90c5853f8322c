import json
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from adagp.accelerator import CNNS, IMAGE_SETS, Design, Setting, network, paper_schedule, simulate
from adagp.accelerator.resizing import resize
from adagp.cli import app
from adagp.reproduce import accelerator as paper
from adagp.reproduce import coarse
from adagp.schedules import always_backprop

SETTING = Setting(32, 30)


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "240"})


def reproduced(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_figure_17_has_every_network_with_averages_and_maxima_beside_the_papers(tmp_path):
    found = reproduced("fig17", "--picture", str(tmp_path / "fig17.png"))
    assert (tmp_path / "fig17.png").read_bytes().startswith(b"\x89PNG")
    speed_ups = found["speed_ups"]
    assert list(speed_ups) == list(IMAGE_SETS)
    assert all(list(networks) == list(CNNS) for networks in speed_ups.values())
    table, ours = found["tables"]
    assert ours["title"].startswith("Not in the paper")
    cells = ours["rows"][-1]
    page = (Path(__file__).parents[2] / "docs/accelerator.md").read_text()
    assert f"| speed-up, WS (`fig17`) | CIFAR-10 | {' | '.join(cells[1:4])} |" in page
    assert f"| | ImageNet | {' | '.join(cells[-3:])} |" in page
    rows = {row[0]: row[1:] for row in table["rows"]}
    for place, data in enumerate(IMAGE_SETS):
        ours = [each["max"] for each in speed_ups[data].values()]
        assert rows["average"][3 * place + 2] == f"{fmean(ours):.3f}"
        assert rows["maximum"][3 * place + 2] == f"{max(ours):.3f}"
    assert rows["paper's average"][2::3] == ["1.46", "1.46", "1.48"]
    assert rows["paper's maximum"][2::3] == ["1.51", "1.51", "1.58"]
    runs = simulate(network("vgg16", "imagenet", 128), *paper_schedule(90))
    assert speed_ups["imagenet"]["vgg16"]["low"] == runs[Design.BASELINE].cycles / runs[Design.LOW].cycles


def test_coarse_batches_stand_beside_figure_17_in_a_table_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(coarse, "CNNS", ("vgg13", "inception_v3"))
    monkeypatch.setattr(paper, "CNNS", ("vgg13", "inception_v3"))
    found = reproduced("fig17", "--batch", "32", "--epochs", "30", "--picture", str(tmp_path / "a.svg"))
    ours = found["coarse_speed_ups"]
    assert ours["imagenet"]["inception_v3"] == {"coarse": None, "progressive": None}
    assert set(found["speed_ups"]["imagenet"]["vgg13"]) == {"low", "efficient", "max"}
    for data in IMAGE_SETS:
        ops = network("vgg13", data, 32)
        full, small = (simulate(each, always_backprop(), 1).baseline.cycles for each in (ops, resize(ops, 0.5)))
        assert ours[data]["vgg13"]["progressive"] == pytest.approx(full / (0.6 * small + 0.4 * full))
        cheap = (4 * (4 / 5 + 3 / 4 + 2 / 3) + 8 / 2) / 30
        assert ours[data]["vgg13"]["coarse"] == pytest.approx(full / (cheap * small + (1 - cheap) * full))
    _, table = found["tables"]
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert rows["inception_v3"][-2:] == ["-", "-"]
    assert rows["average"][-3:] == rows["vgg13"][-3:]
    assert rows["vgg13"][0] == f"{found['speed_ups']['cifar10']['vgg13']['max']:.3f}"
    assert b"progressive (ours)" in (tmp_path / "a.svg").read_bytes()


@pytest.mark.usefixtures("two_networks")
def test_one_data_set_alone_has_the_same_figures(tmp_path):
    picture = tmp_path / "a.svg"
    whole = reproduced("fig18", "--batch", "32", "--epochs", "30")
    one = reproduced("fig18", "--batch", "32", "--epochs", "30", "--data", "imagenet", "--picture", str(picture))
    for figures in ("speed_ups", "coarse_speed_ups"):
        assert one[figures] == {"imagenet": whole[figures]["imagenet"]}
    for table, all_sets in zip(one["tables"], whole["tables"], strict=True):
        assert [row[1:] for row in table["rows"]] == [row[-3:] for row in all_sets["rows"]]
    assert picture.is_file()
    assert "data='mnist'" in run("fig18", "--data", "mnist").stderr
    assert "leave out --data or --levers" in run("fig18", "--data", "imagenet", "--levers").stderr


def test_every_command_of_the_accelerator_is_there():
    listed = run("--help").stdout
    for name in (
        "fig16",
        "fig17",
        "fig18",
        "fig19",
        "fig21",
        "table2-cycles",
        "table3-cycles",
        "iso-power",
        "iso-area",
    ):
        assert name in listed
        assert "Usage" in run(name, "--help").stdout


def test_figure_16_adds_up(tmp_path):
    found = reproduced("fig16", "--picture", str(tmp_path / "fig16.svg"), "--batch", "16")
    assert b"<svg" in (tmp_path / "fig16.svg").read_bytes()
    rows = found["tables"][0]["rows"]
    assert len(rows) == 12
    assert rows[-1][0] == "all"
    found = paper.simulated("vgg13", "cifar10", SETTING)
    assert paper.figure16_table(found, SETTING).rows[-1][-1] == f"{found.speed_up(Design.EFFICIENT):.3f}"


@pytest.mark.parametrize(
    ("command", "printed"), [("table2-cycles", ["1,245.87", "1.13"]), ("table3-cycles", ["11,490,248", "1.17", "1.26"])]
)
def test_tables_of_cycles_show_the_papers_beside_ours(command, printed):
    result = run(command, "--batch", "16")
    assert result.exit_code == 0, result.output
    for text in (*printed, "states neither epochs nor batch"):
        assert text in result.stdout


@pytest.fixture
def two_networks(monkeypatch):
    for module in (paper, coarse):
        monkeypatch.setattr(module, "CNNS", ("vgg13", "mobilenet_v2"))


@pytest.mark.usefixtures("two_networks")
def test_figure_21_prints_every_policy_and_table_of_energies():
    found = reproduced("fig21", "--batch", "32")
    networks, policies, ours = found["tables"]
    saved = found["coarse_saved_percent"]["cifar10"]["vgg13"]
    assert 0 < saved["coarse"] < saved["progressive"] < 50
    assert ours["rows"][0][1:4] == [networks["rows"][0][2], *(f"{saved[name]:.1f}" for name in saved)]
    assert [row[0] for row in policies["rows"]] == ["once", "separate", "momentum", "kept"]
    dram = {row[0]: float(row[1]) for row in policies["rows"]}
    assert dram["once"] < dram["separate"] < dram["kept"]
    assert policies["columns"][2:] == ["eyeriss", "horowitz", "lpddr3", "ddr3"]
    assert [row[0] for row in networks["rows"]] == ["vgg13", "mobilenet_v2", "average"]


@pytest.mark.usefixtures("two_networks")
def test_equal_area_gives_the_baseline_more_pes():
    table = paper.iso_table("area", SETTING, lambda text: None)
    assert {row[2] for row in table.rows} == {"192", "195", "200"}
    assert all(float(row[3]) > 0 for row in table.rows)
    assert [row[-1] for row in table.rows[:3]] == ["+4.63", "+4.61", "+5.53"]


@pytest.mark.usefixtures("two_networks")
def test_tables_of_all_networks_fit_a_terminal_of_80_columns():
    found = paper.grid(SETTING)
    for table in (paper.speed_up_table(17, found, SETTING), *paper.figure21_tables(found, SETTING, lambda text: None)):
        widths = [
            max(len(word) for cell in (heading, *(row[place] for row in table.rows)) for word in cell.split() or [""])
            for place, heading in enumerate(table.columns)
        ]
        widths[0] = max(len(row[0]) for row in table.rows)
        assert sum(width + 2 for width in widths) <= 80


def test_levers_change_one_assumption_each():
    levers = paper._levers(SETTING)
    assert levers.pop("nothing") == SETTING
    assert len({repr(lever) for lever in levers.values()} - {repr(SETTING)}) == len(levers)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["fig17", "--batch", "0"], ["batch=0"]),
        (["fig18", "--array", "0x3"], ["array=0x3"]),
        (["fig16", "--data", "mnist"], ["data='mnist'"]),
        (["fig16", "--picture", "a.gif"], ["a.gif", ".png or .svg"]),
        (["fig21", "--policy", "never"], ["policy='never'"]),
        (["table2-cycles", "--epochs", "0"], ["epochs=0"]),
    ],
)
def test_bad_input_names_itself_and_the_remedy(arguments, messages):
    result = run(*arguments)
    assert result.exit_code == 2
    for message in messages:
        assert message in result.stderr
