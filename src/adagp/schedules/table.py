"""Schedules as a text table that people read and write: rows are layers, columns are batches, cells are sources.

    # part of figure 3 of Wang et al., "Accelerated CNN Training Through Gradient Approximation"
    layer   1         2         3         4
    conv1   backprop  zero      random    zero
    conv2   backprop  backprop  random    backprop
    conv*   topk      backprop  backprop  backprop

The table repeats forever. A row names a layer or a shell-style pattern; the first row that matches a layer counts,
and layers that no row matches get `backprop`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from adagp.schedules.plan import Phase, Plan, Repeating, Schedule, require
from adagp.schedules.sources import names

_Line = tuple[int, list[str]]
"""A line's number in the file and its words."""


def from_table(text: str, layers: Sequence[str]) -> Schedule:
    """The schedule of a table; ValueError names the line that cannot be, why, and what to do.

    Every batch is a BP batch, even one without `backprop` in its column: norms and other uncovered modules train.
    """
    single = "is a single line: give the table itself, for example Path('mine.txt').read_text()"
    require(not text or "\n" in text, "table", single)
    lines = list(_words(text))
    require(len(lines) > 0, "table", "is empty: begin with a header such as 'layer 1 2 3 4', then a row per layer")
    batches = _batches(*lines[0])
    require(len(lines) > 1, "table", "has a header and no rows: write a layer or pattern, then a source per batch")
    sources: dict[str, list[str]] = {}
    for number, words in lines[1:]:
        pattern, cells = _row(number, words, batches)
        sources.update(dict.fromkeys(_claimed(number, pattern, layers, sources), cells))
    return Repeating([_plan(sources, batch, batches) for batch in range(batches)])


def to_table(schedule: Callable[[int], Plan], layers: Sequence[str], batches: int) -> str:
    """The first batches of any schedule as a table, to begin one's own from.

    A table knows sources and no phases: what else a GP batch leaves out (graph, norms) is not written.
    """
    require(len(layers) > 0, "layers", "there are none: take them from schedules.layer_names(model)")
    require(batches >= 1, "batches", "must be at least 1")
    plans = [schedule(step) for step in range(batches)]
    rows = [["layer", *map(str, range(1, batches + 1))]]
    rows += [[_escaped(layer), *(plan.source(layer) for plan in plans)] for layer in layers]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _words(text: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words


def _batches(number: int, words: list[str]) -> int:
    """How many batches the header announces."""
    wanted = ["layer", *map(str, range(1, len(words)))]
    if words != wanted or len(words) < 2:
        raise ValueError(f"line {number}: the header is {' '.join(words)!r}: write 'layer 1 2 3', a number per batch")
    return len(words) - 1


def _row(number: int, words: list[str], batches: int) -> tuple[str, list[str]]:
    """The pattern and the sources of a row."""
    pattern, *cells = words
    if len(cells) != batches:
        raise ValueError(
            f"line {number}: row {pattern!r} has {len(cells)} sources, the header {batches} batches: give one per batch"
        )
    for batch, cell in enumerate(cells, start=1):
        if cell not in names():
            known = ", ".join(sorted(names()))
            raise ValueError(f"line {number}: row {pattern!r}, batch {batch}: {cell!r} is no source; known: {known}")
    return pattern, cells


def _claimed(number: int, pattern: str, layers: Sequence[str], taken: dict[str, list[str]]) -> list[str]:
    """The layers a row decides; one that decides nothing is a mistake."""
    matching = [layer for layer in layers if fnmatchcase(layer, pattern)]
    if not matching:
        raise ValueError(f"line {number}: {pattern!r} matches no layer; the layers are: {', '.join(layers)}")
    claimed = [layer for layer in matching if layer not in taken]
    if not claimed:
        raise ValueError(
            f"line {number}: {pattern!r} decides nothing, rows above match all its layers and the first match counts: "
            "move it up, or remove it"
        )
    return claimed


def _plan(sources: dict[str, list[str]], batch: int, batches: int) -> Plan:
    others = {layer: cells[batch] for layer, cells in sources.items() if cells[batch] != "backprop"}
    return Plan(Phase.BP, "backprop", others, f"batch {batch + 1}/{batches}")


def _escaped(layer: str) -> str:
    """The pattern that matches this layer alone."""
    if not layer or re.search(r"[\s#]", layer):
        raise ValueError(
            f"layers: {layer!r} cannot be written in a table, whose names have no blanks and no '#': "
            "rename the module, or use schedules.from_function"
        )
    return re.sub(r"([*?[])", r"[\1]", layer)
