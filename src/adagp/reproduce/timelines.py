"""Figures 7 to 9 of the ADA-GP paper: one chip that works layer by layer; and how often devices wait for each other.

A chip that does one layer after the other is a pipeline of as many stages with one micro-batch: nothing overlaps.
"""

from dataclasses import dataclass
from typing import Any

from adagp.accelerator.pipeline import Pipeline, Timeline, costs, simulate
from adagp.report.table import Table
from adagp.reproduce.pipeline import DEVICES, MICROBATCHES
from adagp.schedules import Phase

LAYERS = 4


@dataclass(frozen=True)
class ChipTimeline:
    """One figure.

    Attributes:
        figure: Its number.
        title: What it shows.
        timeline: The simulated timeline, in forwards of one layer.
        stated: What the paper states, as text.
        paper_steps: The same as a number.
    """

    figure: int
    title: str
    timeline: Timeline
    stated: str
    paper_steps: float

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "figure": self.figure,
            "title": self.title,
            "steps": self.timeline.steps,
            "stated": self.stated,
            "paper_steps": self.paper_steps,
        }


def chip_timelines(alpha: float) -> list[ChipTimeline]:
    """The three figures, with a predictor whose forward takes `alpha` of a layer's."""

    def of(phase: Phase, predictor: float) -> Timeline:
        return simulate(Pipeline("gpipe", LAYERS, 1, (phase,)), costs(LAYERS, predictor=predictor))

    return [
        ChipTimeline(7, "baseline", of(Phase.BP, 0), "12", 12),
        ChipTimeline(8, "phase BP", of(Phase.BP, alpha), "12 + 12 alpha", 12 + 12 * alpha),
        ChipTimeline(9, "phase GP", of(Phase.GP, alpha), "4 + 4 alpha", 4 + 4 * alpha),
    ]


def timelines_table(shown: list[ChipTimeline], alpha: float) -> Table:
    """The steps of one batch in each figure, and of two batches, ours beside the paper's."""
    plain, exact, predicted = (each.timeline.steps for each in shown)
    rows = [
        (f"figure {each.figure}: {each.title}", f"{each.timeline.steps:g}", each.stated, f"{each.paper_steps:g}")
        for each in shown
    ]
    rows.append(("two batches, baseline", f"{2 * plain:g}", "24", "24"))
    rows.append(("a BP and a GP batch", f"{exact + predicted:g}", "16 + 16 alpha", f"{16 + 16 * alpha:g}"))
    return Table(
        f"Figures 7 to 9: a network of {LAYERS} layers on one chip, alpha = {alpha:g}",
        ("timeline", "steps", "paper's", f"at alpha = {alpha:g}"),
        rows,
        ("a step: the forward of one layer; a backward takes two; alpha: the predictor's forward",),
    )


@dataclass(frozen=True)
class Synchronisations:
    """How often the devices of a pipeline wait for each other.

    Attributes:
        scheme: The pipeline's schedule.
        phases: The phases of its batches.
        messages: Results that go from one device to another.
        drains: Batches after which a stage waits for a backward before it may start the next batch.
    """

    scheme: str
    phases: tuple[Phase, ...]
    messages: int
    drains: int

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "schedule": self.scheme,
            "phases": [phase.value for phase in self.phases],
            "messages": self.messages,
            "drains": self.drains,
        }


def synchronisations(pipeline: Pipeline) -> Synchronisations:
    """Count the waits of a pipeline from its simulated timeline."""
    timeline = simulate(pipeline, costs(pipeline.devices))
    messages = 0
    for slot in timeline.slots:
        task = slot.task
        passed_on = [need for need in pipeline.needs(task) if need.batch == task.batch and need.stage != task.stage]
        messages += sum(pipeline.device_of(need) != slot.device for need in passed_on)
    drains = sum(pipeline.has_backward(batch) for batch in range(len(pipeline.phases)))
    return Synchronisations(pipeline.scheme, pipeline.phases, messages, drains)


def all_synchronisations() -> list[Synchronisations]:
    """Two plain batches, a GP and a BP batch, and two GP batches, over every schedule of section 3.8."""
    pairs = ((Phase.BP, Phase.BP), (Phase.GP, Phase.BP), (Phase.GP, Phase.GP))
    return [
        synchronisations(Pipeline(scheme, DEVICES, MICROBATCHES, phases))
        for scheme in ("gpipe", "dapple", "chimera")
        for phases in pairs
    ]


def synchronisations_table(found: list[Synchronisations]) -> Table:
    """The counts, as shares of those of plain backpropagation."""
    plain = {each.scheme: each for each in found if each.phases == (Phase.BP, Phase.BP)}
    return Table(
        f"Synchronisation of {DEVICES} devices, {MICROBATCHES} micro-batches, two batches",
        ("schedule", "phases", "messages", "of all BP", "drains", "of all BP"),
        [
            (
                each.scheme,
                " ".join(phase.value for phase in each.phases),
                str(each.messages),
                f"{each.messages / plain[each.scheme].messages:.2f}",
                str(each.drains),
                f"{each.drains / plain[each.scheme].drains:.2f}",
            )
            for each in found
        ],
        (
            "the paper (section 3.8): ADA-GP reduces the synchronisation steps to half; it does not say which",
            "messages: results that go from one device to another; a GP batch has half of them",
            "drains: batches whose backward a stage waits for before the next one; every other with GP and BP in turns",
        ),
        text_columns=2,
    )
