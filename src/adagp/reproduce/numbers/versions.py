"""The earlier version of the ADA-GP paper (000) and the reader's digest of it (002): what they have beyond 001."""

from collections.abc import Iterator, Sequence

from adagp.reproduce.numbers.row import Row, Verdict, judged
from adagp.reproduce.timelines import chip_timelines

# Its figures and tables, and the places of the later version with the same content.
SAME = {
    "figures 1 to 3": ("figures 1, 2, 5",),
    "figure 4": ("section 3.6, figure 6",),
    "figures 5, 6, 7": ("figure 7", "figure 8", "figure 9"),
    "figures 8, 9, 10": ("figure 10", "figure 11", "figure 12"),
    "figures 11, 12": ("figure 13", "figure 14"),
    "figure 13": ("figure 16",),
    "figure 14": ("figure 17",),
    "figure 15": ("figure 18",),
    "figure 16": ("figure 19",),
    "figure 17": ("figure 20",),
    "figure 18": ("figure 21",),
    "table 1": ("table 1",),
    "table 2": ("table 2",),
    "table 3": ("table 4a", "table 4b"),
    "table 4": ("table 5a", "table 5b"),
}


def earlier(later: Sequence[Row]) -> Iterator[Row]:
    """Paper 000; `later` are the rows of paper 001, from which most of its verdicts follow."""
    for here, places in SAME.items():
        verdicts = [row.verdict for row in later if row.where in places]
        counts = ", ".join(f"{verdicts.count(each)} {each.value}" for each in Verdict if each in verdicts)
        there = ", ".join(places)
        worst = next(each for each in (Verdict.REFUTED, Verdict.OPEN, Verdict.REPRODUCED) if each in verdicts)
        yield Row(
            here, f"what the later version has in {there}", "the same", worst, f"{counts}", f"see {there} of paper 001"
        )
    plain, _, predicted = (each.timeline.steps for each in chip_timelines(0.0))
    yield Row(
        "section 1",
        "speed-up if every gradient were predicted",
        "almost 2 x",
        judged(abs(plain / predicted - 2) < 0.1),
        f"{plain / predicted:g} x by its own figures 5 and 7; the later version says 3",
        "`adagp reproduce fig7-9 --predictor 0`",
    )
    yield Row("section 5", "networks", "14", Verdict.REPRODUCED, "14: 001's without YOLO-v3", "`adagp models`")
    yield Row(
        "abstract",
        "mean speed-up, energy saved",
        "1.47, 34 %",
        Verdict.REPRODUCED,
        "as for 001",
        "see the abstract and figure 21 of paper 001",
    )


def digest() -> Iterator[Row]:
    """Paper 002."""
    yield Row(
        "key results",
        "mean speed-up, energy saved, 14 networks",
        "1.47 x, 34 %",
        Verdict.REPRODUCED,
        "as for 001",
        "see the abstract and figure 21 of paper 001",
    )
    yield Row(
        "key results",
        "accuracy maintained or improved",
        "maintained or improved",
        Verdict.OPEN,
        "lower in every short run",
        "see the abstract of paper 001",
    )
    yield Row(
        "open question 2",
        "the best schedule of BP and GP",
        "open",
        Verdict.OPEN,
        "`adaptive` sets k:m by measured quality; no schedule beat plain backpropagation in the same time",
        "`adagp compare --methods bp,adagp,adaptive,skip,short-bp`; [results](results.md)",
    )
    yield Row(
        "next check 3",
        "34 % less energy on a cycle-accurate simulator",
        "34 %",
        Verdict.REPRODUCED,
        "31.4 % by the model whose cycles the RTL confirms",
        "`adagp reproduce fig21`",
    )
