"""One batch of each kind side by side, and the table of them in the docs."""

from pathlib import Path

import pytest

from adagp.accelerator import COST_TABLES, Design, Machine, batch_kinds, network
from adagp.report.batch_kinds import kinds_facts, kinds_table, schedule_words

EYERISS = COST_TABLES["eyeriss"]
PAGE = Path(__file__).parents[2] / "docs" / "accelerator.md"


def test_shares_are_of_the_baselines_bp_batch() -> None:
    kinds = batch_kinds(network("resnet20", "cifar10", 8), scale=0.5)
    table = kinds_table(kinds, EYERISS, ("a note",))
    assert table.columns == ("design", "batch", "cycles", "%", "energy", "%")
    rows = {row[:2]: row[2:] for row in table.rows}
    assert ("baseline", "GP") not in rows
    assert rows["baseline", "BP"][1] == rows["baseline", "BP"][3] == "100.0"
    plain, coarse = kinds[Design.BASELINE][0], kinds[Design.LOW][2]
    assert rows["low", "BP@0.5"][1] == f"{100 * coarse.cycles / plain.cycles:.1f}"
    assert rows["low", "BP@0.5"][3] == f"{100 * coarse.energy(EYERISS) / plain.energy(EYERISS):.1f}"
    assert table.notes[-1] == "a note"
    facts = kinds_facts(kinds, EYERISS)["low"][-1]
    assert (facts["batch"], facts["cycles"], facts["scale"]) == ("BP@0.5", coarse.cycles, 0.5)


@pytest.mark.parametrize(
    ("label", "model", "batch", "machine"),
    [
        ("ResNet-20", "resnet20", 128, Machine()),
        ("ResNet-50", "resnet50", 128, Machine()),
        ("VGG13", "vgg13", 128, Machine()),
        ("MobileNet-V2", "mobilenet_v2", 128, Machine()),
        ("VGG13 at batch 16", "vgg13", 16, Machine()),
        ("VGG13 under `rs`", "vgg13", 128, Machine(dataflow="rs")),
    ],
)
def test_the_docs_have_the_figures_of_the_command(label: str, model: str, batch: int, machine: Machine) -> None:
    kinds = batch_kinds(network(model, "cifar10", batch), machine, 0.5)
    rows = {row[:2]: row[2:] for row in kinds_table(kinds, EYERISS).rows}
    shares = [rows["max", batch][place] for batch in ("GP", "BP@0.5") for place in (1, 3)]
    assert f"| {' | '.join([label, *shares])} |" in PAGE.read_text()


def test_schedules_in_words() -> None:
    levels = ((0.5, 0.6), (1.0, 0.4))
    assert schedule_words("adagp", 0.5, levels) == "the paper's ladder"
    assert schedule_words("coarse", 0.75, levels) == "the paper's ladder with BP@0.75 instead of GP"
    assert schedule_words("progressive", 0.5, levels) == "progressive resizing, 60 % at 0.5, 40 % at 1"
