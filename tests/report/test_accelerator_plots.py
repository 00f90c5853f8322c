"""Pictures of the accelerator model: what their panels are, and that no bar hides another."""

import re
from itertools import combinations

import pytest

from adagp.accelerator import Design, Machine, network, paper_schedule, simulate
from adagp.report.accelerator_plots import _timeline, timeline_picture
from adagp.schedules import Phase


@pytest.fixture(scope="module")
def simulation():
    return simulate(network("vgg13", "cifar10", 128), *paper_schedule(30), Machine())


def test_a_timeline_has_a_panel_for_each_kind_of_batch(simulation):
    text = timeline_picture(simulation, "a title", "svg").decode()
    found = re.findall(r"<!-- (\w+, \w+ batch): ([\d,]+) cycles -->", text)
    assert [name for name, _ in found] == [
        "Baseline, BP batch",
        "Efficient, BP batch",
        "Efficient, GP batch",
        "MAX, BP batch",
        "MAX, GP batch",
    ]
    cycles = {name: int(number.replace(",", "")) for name, number in found}
    assert cycles["MAX, BP batch"] < cycles["Efficient, BP batch"]


class Panel:
    """Keeps what is drawn on it."""

    def __init__(self):
        self.bars = []

    def broken_barh(self, spans, up, color):
        self.bars += [(start, start + wide, up[0], up[0] + up[1]) for start, wide in spans]

    def set_yticks(self, *labels, fontsize): ...

    def set_ylim(self, *limits): ...


@pytest.mark.parametrize("phase", [Phase.BP, Phase.GP])
@pytest.mark.parametrize("design", Design)
def test_no_bar_hides_another(simulation, design, phase):
    for batch in simulation[design].batches:
        if batch.phase is phase:
            panel = Panel()
            _timeline(panel, batch.steps)
            assert panel.bars
            for one, other in combinations(panel.bars, 2):
                assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
