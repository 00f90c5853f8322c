"""`adagp schedule show` as users meet it."""

import json
import re
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner, Result

from adagp import models, schedules
from adagp.cli import app

RESNET20 = models.build("resnet20")
LAYERS = schedules.layer_names(RESNET20)
CONVOLUTIONS = schedules.layer_names(RESNET20, include="Conv")


def show(*words: str) -> Result:
    return CliRunner().invoke(app, ["schedule", "show", *words])


def shown_json(*words: str) -> dict[str, object]:
    result = show(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", list(schedules.APPROXIMATIONS))
def test_json_is_the_schedule_itself(name: str) -> None:
    found = shown_json("--schedule", name, "--source", "random", "--batches", "5", "--start", "2")
    wanted = schedules.approximation(name, CONVOLUTIONS, "random")
    assert found["batches"] == [3, 4, 5, 6, 7]
    assert found["layers"] == {layer: [wanted(step).source(layer) for step in range(2, 7)] for layer in LAYERS}


def test_schedule_1_by_hand() -> None:
    """Each 3x3 convolution of a stage of ResNet-20 has as many products as any other but three of half the work."""
    found = shown_json("--schedule", "1", "--source", "zero")
    unit = 128 * 16 * 16 * 9 * 1024  # a convolution of 16 channels at 32 x 32; each later stage has as many products
    halves = {"stages.1.0.conv1", "stages.2.0.conv1"}
    products = {layer: unit // 2 if layer in halves else unit for layer in LAYERS}
    products["stem.0"], products["head.2"] = 128 * 3 * 16 * 9 * 1024, 128 * 64 * 10
    plain = 3 * sum(products.values()) - products["stem.0"]
    saved = sum(products[layer] for layer in LAYERS[1::4])
    assert found["relative_multiply_adds"] == pytest.approx(1 - saved / plain)
    assert found["shares"] == {"backprop": 0.75, "zero": 0.25}  # 5 of 20 layers


def test_the_terminal_shows_letters_legend_shares_and_cost() -> None:
    result = show("--schedule", "3", "--source", "topk", "--batches", "4")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    for layer in CONVOLUTIONS:
        assert lines[layer] == ["b", "b", "b", "T"]
    assert lines["head.2"] == ["b", "b", "b", "b"]
    share = 100 * 19 / 80
    assert re.search(rf"b +backprop {100 - share:.1f} % +T +topk {share:.1f} %", result.stdout)
    assert re.search(r"expected cost: 9\d\.\d % of the multiply-adds of plain backpropagation", result.stdout)


def test_the_ladder_is_shown_from_the_end_of_its_warm_up() -> None:
    found = shown_json("--schedule", "ladder", "--batches", "5")
    assert found["batches"] == [3901, 3902, 3903, 3904, 3905]
    assert found["phases"] == ["GP"] * 4 + ["BP"]
    assert shown_json("--schedule", "ladder", "--start", "0", "--batches", "1")["phases"] == ["WARMUP"]


def test_a_prefix_is_cheaper_the_further_it_goes() -> None:
    costs = [
        shown_json("--until", until, "--source", "zero", "--batches", "5")["relative_multiply_adds"]
        for until in ("stem", "stages.0", "stages.1")
    ]
    assert costs == sorted(costs, reverse=True)  # type: ignore[type-var]
    found = shown_json("--until", "stages.0", "--batches", "1")
    assert found["phases"] == ["BP"]
    assert found["layers"]["stages.0.2.conv2"] == ["predicted"]  # type: ignore[index]
    assert found["layers"]["stages.1.0.conv1"] == ["backprop"]  # type: ignore[index]


@pytest.mark.parametrize(("name", "start"), [("picture.png", b"\x89PNG"), ("picture.svg", b"<?xml")])
def test_the_picture_is_one_of_both_formats(tmp_path: Path, name: str, start: bytes) -> None:
    result = show("--picture", str(tmp_path / name))
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_bytes().startswith(start)
    assert str(tmp_path / name) in result.stdout.replace("\n", "")


def test_a_written_table_is_read_back_and_edited(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    assert show("--schedule", "2", "--source", "zero", "--batches", "2", "--write-table", str(path)).exit_code == 0
    assert (
        shown_json("--schedule", str(path), "--batches", "4")["layers"]
        == (shown_json("--schedule", "2", "--source", "zero", "--batches", "4")["layers"])
    )
    path.write_text(path.read_text().replace("stem.0 ", "stem.0 ".replace("0", "?")).replace("zero", "topk"))
    assert set(shown_json("--schedule", str(path), "--topk", "2")["shares"]) == {"backprop", "topk"}  # type: ignore[call-overload]
    again = show("--write-table", str(path))
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_a_table_says_what_it_cannot_hold(tmp_path: Path) -> None:
    for words, warned in (
        (["--until", "stem.0"], False),
        (["--until", "stem"], True),
        (["--schedule", "ladder"], True),
    ):
        path = tmp_path / f"{words[-1]}.txt"
        assert show(*words, "--write-table", str(path)).exit_code == 0
        assert ("only sources are written" in path.read_text()) == warned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnet99"], r"no model is called 'resnet99'.*resnet20"),
        (["--schedule", "9"], r"schedule '9' is neither a file nor one of 1, 2, 3, second-layer, ladder"),
        (["--schedule", "absent.txt"], r"schedule file 'absent.txt' cannot be read"),
        (["--source", "nothing"], r"source='nothing' is unknown.*topk"),
        (["--schedule", "ladder", "--source", "topk"], r"topk needs a backward"),
        (["--until", "stage9"], r"until='stage9'.*the layers are: stem.0"),
        (["--until", "head"], r"until='head'.*use the ladder itself"),
        (["--until", "stem", "--schedule", "2"], r"--until.*not of schedule 2"),
        (["--topk", "4"], r"topk = 4 would change nothing"),
        (["--picture", "x.gif"], r"picture=x\.gif: .*\.png or \.svg"),
        (["--schedule", "ragged.txt"], r"table 'ragged.txt': line 3: row 'stem\*' has 1 sources, the header 2"),
        (["--schedule", "good.txt", "--source", "zero"], r"--source zero would change nothing"),
        (["--schedule", "picture.png"], r"'picture.png' cannot be read"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ragged.txt").write_text("layer 1 2\nhead* zero zero\nstem* zero\n")
    Path("good.txt").write_text("layer 1 2\nstem* zero zero\n")
    Path("picture.png").write_bytes(b"\x89PNG\xff\xfe")
    result = show(*words)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("adagp: error: ")
    assert re.search(message, line), line
    assert result.stdout == ""


def test_options_before_show_are_not_ignored() -> None:
    result = CliRunner().invoke(app, ["schedule", "--epochs", "3", "show"])
    assert result.exit_code == 2
    assert re.search(r"epochs stands before 'show'.*remove it", result.stderr)


def test_help_teaches() -> None:
    result = show("--help")
    assert result.exit_code == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    assert re.search(r"adagp schedule show --schedule 2 --source topk: ", shown)
    for name, about in schedules.APPROXIMATIONS.items():
        assert f"{name}: {about}" in shown
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    inner = group.get_command(Context(group), "schedule")
    assert isinstance(inner, TyperGroup)
    for parameter in inner.commands["show"].params:
        assert isinstance(parameter, TyperOption)
        assert parameter.opts[0] in shown
        assert parameter.help
        assert " ".join(parameter.help.split()[:2]) in shown


def test_a_network_of_tokens_is_counted_in_sequences() -> None:
    done = show("--model", "gpt", "--schedule", "progressive")
    assert done.exit_code == 0, done.output
    # Five of eight batches at half the context, three at the whole; attention's products have no weights.
    assert "expected cost: 68.8 %" in done.stdout
    assert "for 128 sequences of 128;" in done.stdout
    assert shown_json("--model", "gpt", "--schedule", "ladder")["input_shape"] == [128, 128]


def test_local_has_one_plan_and_no_cost_before_training(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["schedule", "--method", "local"])
    assert done.exit_code == 2
    assert "every layer is local" in done.stderr
    table = tmp_path / "plan.txt"
    table.write_text("layer 1\n* local\n", encoding="utf-8")
    done = show("--model", "resnet20", "--schedule", str(table))
    assert "its cost cannot be counted before" in done.stderr
