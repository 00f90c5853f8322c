"""Figures 10 to 12 of the ADA-GP paper: its phases over GPipe, DAPPLE and Chimera."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adagp.accelerator.pipeline import Pipeline, Timeline, costs, simulate
from adagp.report.table import Table
from adagp.schedules import Phase

SCHEMES = {10: "gpipe", 11: "dapple", 12: "chimera"}
"""The schedule of the pipeline in each figure."""
DEVICES = MICROBATCHES = 4

_PANELS = (
    ("a) phase BP", (Phase.BP,)),
    ("b) phase GP", (Phase.GP,) * 3),
    ("c) from BP to GP", (Phase.BP, Phase.GP, Phase.GP)),
    ("section 6.5, from GP to BP", (Phase.GP, Phase.BP)),
)
_PAPER_STEPS = {
    "gpipe": {(Phase.BP,): 21, (Phase.GP, Phase.BP): 25},
    "dapple": {(Phase.BP,): 21, (Phase.GP, Phase.BP): 25},
    "chimera": {(Phase.BP,): 16, (Phase.GP, Phase.BP): 20},
}


@dataclass(frozen=True)
class Panel:
    """One part of a figure.

    Attributes:
        title: Its title.
        timeline: The simulated timeline, in steps.
        plain_steps: The steps of plain backpropagation for the same number of batches.
        paper_steps: The steps in section 6.5; None if it does not state them.
    """

    title: str
    timeline: Timeline
    plain_steps: float
    paper_steps: int | None

    def plain(self) -> dict[str, Any]:
        """The panel as plain values, for JSON."""
        return {
            "title": self.title,
            "phases": [phase.value for phase in self.timeline.pipeline.phases],
            "steps": self.timeline.steps,
            "paper_steps": self.paper_steps,
            "all_bp_steps": self.plain_steps,
        }


def panels(figure: int) -> list[Panel]:
    """The parts of a figure: four devices, four micro-batches, a backward as long as two forwards, messages free."""
    scheme, price = SCHEMES[figure], costs(DEVICES)
    found = []
    for title, phases in _PANELS:
        pipeline = Pipeline(scheme, DEVICES, MICROBATCHES, phases)
        plain = simulate(pipeline.all_bp(), price)
        found.append(Panel(title, simulate(pipeline, price), plain.steps, _PAPER_STEPS[scheme].get(phases)))
    return found


def figure_table(figure: int, shown: Sequence[Panel]) -> Table:
    """The steps of a figure's parts, ours beside the paper's."""
    return Table(
        title=f"Figure {figure}: ADA-GP over {SCHEMES[figure]}, {DEVICES} devices, {MICROBATCHES} micro-batches",
        columns=("part", "phases", "steps", "paper's", "all BP", "speed-up"),
        rows=[
            (
                panel.title,
                " ".join(phase.value for phase in panel.timeline.pipeline.phases),
                f"{panel.timeline.steps}",
                "-" if panel.paper_steps is None else f"{panel.paper_steps}",
                f"{panel.plain_steps}",
                f"{panel.plain_steps / panel.timeline.steps:.3f}",
            )
            for panel in shown
        ],
        notes=(
            "a step: the forward of a micro-batch through a stage; a backward takes two; predictor and messages free",
            "a stage starts a batch when its update of the batch before is done, by both holders in Chimera",
        ),
        text_columns=2,
    )
