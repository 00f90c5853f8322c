"""Run folders and comparisons: files missing, foreign, damaged, or no files at all."""

import json
import random
import shutil
from pathlib import Path

from fuzz.case import Case, Target
from fuzz.commands import TINY, adagp, in_child, odd_file
from fuzz.mutate import damage, damage_text, value
from fuzz.targets import runs

_OWN = (".lock", "checkpoint.pt", "environment.json", "metrics.json", "quality.json", "recipe.json")
_RESULTS = ("model.pt", "result.json")
_COMPARED = ("compare.json", "calibration.json", "environment.json", "result.json", "bp-seed0", "runs")
_COMPARE = (*TINY, "--methods", "bp,skip", "--seeds", "0")


def _make(draw: random.Random, templates: Path) -> Case:
    kind = draw.choices(("half", "whole", "compared"), (5, 2, 1))[0]
    folder = Path("run")
    shutil.copytree(templates / kind, folder, symlinks=True)
    done = [_change(draw, folder, kind) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    command = "compare" if kind == "compared" and draw.random() < 0.9 else "train"
    words = [command, "--out", "run", *draw.choice((("--resume",),) * 7 + ((),)), "--json"]
    if draw.random() < 0.1:
        words += TINY if command == "train" else _COMPARE
    about = f"{words[0]} {'with' if '--resume' in words else 'without'} --resume, {kind}: {', '.join(done)}"[:300]
    resumed = kind != "compared" and "--resume" in words
    return Case(
        about, lambda: adagp(*words), lambda: runs.differs(folder, templates) if resumed else None, stop_seconds=8
    )


def _change(draw: random.Random, folder: Path, kind: str) -> str:
    """One thing that is wrong with the folder."""
    if not folder.is_dir():
        return "nothing more"
    names = sorted(path.name for path in folder.iterdir())
    path = folder / draw.choice((*names, *names, *_OWN, *_RESULTS, *(_COMPARED if kind == "compared" else ())))
    match draw.randrange(9):
        case 0:
            _remove(path)
            return f"no {path.name}"
        case 1 | 2:
            return odd_file(draw, path)
        case 3 if path.is_file():
            path.write_bytes(damage(draw, path.read_bytes()))
            return f"{path.name} damaged"
        case 4 | 5 if path.is_file() and path.suffix == ".json":
            return _change_json(draw, path)
        case 6 if names:
            other = folder / draw.choice(names)
            if other.is_file() and other != path and path.parent.is_dir() and not path.is_dir():
                _remove(path)
                shutil.copy(other, path)
            return f"{path.name} is {other.name}"
        case 7 if draw.random() < 0.3:
            _remove(folder)
            return odd_file(draw, folder)
        case _:
            (folder / f"extra-{draw.randrange(9)}").write_bytes(draw.randbytes(20))
            return "one more file"


def _change_json(draw: random.Random, path: Path) -> str:
    text = path.read_text(errors="replace")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not values or draw.random() < 0.4:
        path.write_text(damage_text(draw, text), errors="surrogatepass")
        return f"{path.name}: damaged text"
    name = draw.choice(list(values))
    if draw.random() < 0.3:
        del values[name]
    else:
        values[name] = value(draw)
    path.write_text(json.dumps(values))
    return f"{path.name}: another {name}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _prepare(folder: Path) -> None:
    runs.prepare(folder)
    if in_child(lambda: adagp("compare", *_COMPARE, "--out", "compared", "--json"), folder) != 0:
        raise RuntimeError("there is no comparison to damage")


TARGET = Target("folders", "run folders and comparisons", 600, _make, _prepare)
