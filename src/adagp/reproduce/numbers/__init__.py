"""Every figure, table and stated number of the four papers, each with its verdict."""

from collections import Counter
from collections.abc import Callable, Iterable

from adagp.report.table import Table, to_markdown
from adagp.reproduce.numbers import accelerator, accuracy, approximation, hardware, method, pipelines, versions
from adagp.reproduce.numbers.row import Row, Verdict

__all__ = ["Row", "Verdict", "numbers", "page", "summary_table", "tables"]

Numbers = dict[str, list[Row]]
"""The rows of each paper, by title."""


def numbers(tell: Callable[[str], None] = lambda text: None) -> Numbers:
    """Compute every row; `tell` receives what is under way."""
    adagp = [
        *method.rows(),
        *accelerator.rows(tell),
        *pipelines.rows(tell),
        *accuracy.rows(),
        *hardware.rows(),
    ]
    return {
        "Paper 001: ADA-GP (MICRO 2023)": adagp,
        "Paper 000: ADA-GP, the earlier version": list(versions.earlier(adagp)),
        "Paper 002: a digest of ADA-GP": list(versions.digest()),
        "Paper 003: Accelerated CNN Training Through Gradient Approximation": list(approximation.rows()),
    }


def summary_table(found: Numbers) -> Table:
    """How many rows of each paper have which verdict."""
    return Table(
        "Verdicts",
        ("paper", *(verdict.value for verdict in Verdict), "rows"),
        [(title, *_counts(rows), str(len(rows))) for title, rows in found.items()],
    )


def _counts(rows: Iterable[Row]) -> list[str]:
    counted = Counter(row.verdict for row in rows)
    return [str(counted[verdict]) for verdict in Verdict]


def tables(found: Numbers) -> list[Table]:
    """One table for each paper."""
    columns = ("where", "what", "theirs", "verdict", "ours", "command or reason")
    return [
        Table(
            title,
            columns,
            [(row.where, row.what, row.theirs, row.verdict.value, row.ours, row.how) for row in rows],
            text_columns=len(columns),
        )
        for title, rows in found.items()
    ]


_INTRODUCTION = """# What became of every number of the papers?

One row for each figure, table and stated number. **Reproduced**: ours agrees, by the command: counts exactly, speed-ups
to within 2 % (pipelines of networks 3 %), the increase of area to within 1.5 points, energy to within a tenth.
**Refuted**: ours does not, for the reason given. **Not checkable here**: it takes a GPU, data or tools that are not
here, or the paper prints no value; the command starts it where they are.

Figures of the accelerator and of pipelines are computed when this page is written, and so is all arithmetic on the
papers' own tables. Trainings and synthesis are recorded from the pages named; their commands run them again.
`adagp reproduce numbers --page docs/paper-numbers.md` writes this page.
"""


def page(found: Numbers) -> str:
    """All tables as a Markdown page."""
    parts = [_INTRODUCTION, to_markdown(summary_table(found))]
    for table in tables(found):
        parts += [f"## {table.title}\n", to_markdown(table).partition("\n\n")[2]]
    return "\n".join(parts)
