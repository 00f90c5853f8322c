"""Schedule tables: damaged, contradictory, of strange layers."""

import random
from fnmatch import fnmatchcase
from pathlib import Path

from adagp import schedules
from adagp.cli.common import InputError
from adagp.schedules.sources import names
from adagp.training.planning import outline
from fuzz.case import Case, Target
from fuzz.commands import TINY, adagp, library, odd_file
from fuzz.mutate import damage, damage_text, junk

_SOURCES = sorted(names())
_LAYERS = tuple(schedules.layer_names(outline("cnn")))
_PATTERNS = ("*", "features.*", "classifier.?", "[!f]*", "[", "features.[0-9]", "**", "?" * 200)


def _make(draw: random.Random, templates: Path) -> Case:
    path = Path(draw.choice(("mine.txt", "mine", "1.txt")))
    text = _table(draw)
    match draw.randrange(6):
        case 0:
            content, about = text.encode(errors="surrogatepass"), "as drawn"
        case 1 | 2 | 3:
            content, about = damage_text(draw, text).encode(errors="surrogatepass"), "damaged text"
        case 4:
            content, about = damage(draw, text.encode(errors="surrogatepass")), "damaged bytes"
        case _:
            content, about = b"", ""
    if about:
        path.write_bytes(content)
    else:
        about = odd_file(draw, path)
    how = draw.randrange(5)
    if how == 0:
        words = ("train", *TINY, "--method", "table", "--schedule", str(path), "--out", "out", "--json")
        return Case(f"train: {about}", lambda: adagp(*words), stop_seconds=4)
    if how < 3 or not content:
        words = ("schedule", "show", "--schedule", str(path), "--model", "cnn", *draw.choice(((), ("--json",))))
        return Case(f"show: {about}", lambda: adagp(*words))
    given = content.decode(errors="replace")
    return Case(f"from_table: {about}", lambda: library(lambda: _use(given)), lambda: _differs(given))


def _table(draw: random.Random) -> str:
    batches = draw.choice((1, 2, 4, 9, 400))
    rows = ["layer " + " ".join(map(str, range(1, batches + 1)))]
    layers = draw.sample((*_LAYERS, *_PATTERNS, junk(draw)), draw.randint(0, 5))
    rows += [" ".join([layer, *draw.choices(_SOURCES, k=batches)]) for layer in layers]
    if draw.random() < 0.3:
        rows.insert(draw.randrange(len(rows)), "# a remark")
    return draw.choice(("\n", "\r\n", "\n\n", "\x0b", "\u2028")).join(rows) + draw.choice(("", "\n"))


def _use(text: str) -> None:
    try:
        schedule = schedules.from_table(text, _LAYERS)
    except ValueError as error:  # what it raises for a wrong table; the commands add the file's name
        raise InputError(str(error)) from error
    schedules.to_table(schedule, _LAYERS, 8)


def _differs(text: str) -> str | None:
    """The first row that matches a layer counts; read here in the plainest way."""
    words = [line.partition("#")[0].split() for line in text.splitlines()]
    header, *rows = [line for line in words if line]
    schedule, again = schedules.from_table(text, _LAYERS), None
    batches = len(header) - 1
    if batches <= 20:
        again = schedules.from_table(schedules.to_table(schedule, _LAYERS, batches), _LAYERS)
    for layer in _LAYERS:
        cells = next((row[1:] for row in rows if fnmatchcase(layer, row[0])), ["backprop"] * batches)
        for step in range(2 * batches):
            found = schedule(step).source(layer)
            if found != cells[step % batches] or (again and again(step).source(layer) != found):
                return f"{layer}, batch {step + 1}: {found}, the table says {cells[step % batches]}"
    return None


TARGET = Target("tables", "schedule tables", 600, _make)
