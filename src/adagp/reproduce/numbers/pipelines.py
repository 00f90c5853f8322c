"""Numbers of the ADA-GP paper (001) about pipelines: figures 10 to 12 and 20, and synchronisation."""

from collections.abc import Callable, Iterator
from statistics import fmean

from adagp.accelerator import Design, Machine, Setting
from adagp.reproduce.figure20 import PAPER, bars
from adagp.reproduce.numbers.row import Row, Verdict, judged, near
from adagp.reproduce.pipeline import SCHEMES, panels
from adagp.reproduce.timelines import all_synchronisations
from adagp.schedules import Phase

_EQUAL_STAGES = "; its are 42/25 and 32/20, those of equal stages; real ones differ, and so does B/F"
_TURNS = (Phase.GP, Phase.BP)


def rows(tell: Callable[[str], None]) -> Iterator[Row]:
    """Steps, transitions, synchronisation, and the speed-up of networks."""
    for figure, scheme in SCHEMES.items():
        for panel in panels(figure):
            steps, theirs = panel.timeline.steps, panel.paper_steps
            yield Row(
                f"figure {figure}",
                f"{scheme}, {panel.title}, steps",
                "an image without values" if theirs is None else str(theirs),
                Verdict.OPEN if theirs is None else near(steps, theirs, 1e-9),
                f"{steps:g}",
                f"`adagp reproduce fig{figure} --svg FILE`",
            )
    yield from _synchronisation()
    yield from _networks(tell)


def _synchronisation() -> Iterator[Row]:
    command = "`adagp reproduce fig7-9`"
    found = {each.phases: each for each in all_synchronisations() if each.scheme == "gpipe"}
    plain, turns, gp = (found[phases] for phases in ((Phase.BP, Phase.BP), _TURNS, (Phase.GP, Phase.GP)))
    yield Row(
        "section 3.8",
        "synchronisation steps, as batches that a stage waits for",
        "half",
        judged(2 * turns.drains == plain.drains),
        f"{turns.drains} instead of {plain.drains} with GP and BP in turns",
        command,
    )
    yield Row(
        "section 3.8",
        "synchronisation steps, as messages between devices",
        "half",
        judged(2 * turns.messages == plain.messages),
        f"{turns.messages} instead of {plain.messages} with GP and BP in turns; {gp.messages} with GP alone",
        f"{command}; only a GP batch has half of them",
    )


def _networks(tell: Callable[[str], None]) -> Iterator[Row]:
    found = bars(Setting(128, 90, Machine()), Design.MAX, tell)
    for scheme, (largest, mean) in PAPER.items():
        ours = [bar.one_to_one[scheme] for bar in found]
        for kind, theirs, value in (("largest", largest, max(ours)), ("mean", mean, fmean(ours))):
            yield Row(
                "figure 20",
                f"{scheme}, {kind} speed-up on ImageNet",
                f"{theirs:g}",
                near(value, theirs, 0.03),
                f"{value:.3f}",
                "`adagp reproduce fig20`" + (_EQUAL_STAGES if kind == "largest" else ""),
            )
