"""Machines, sweeps, searches and pipelines: any combination of sizes, sensible and not."""

import json
import math
import random
from pathlib import Path
from typing import Any

from adagp.accelerator import COST_TABLES, DATAFLOWS, POLICIES
from adagp.accelerator.pipeline import SCHEMES
from fuzz.case import Case, Target
from fuzz.commands import adagp
from fuzz.mutate import number_text

_NETWORKS = (
    "vgg13 cifar10",
    "mobilenet_v2 imagenet",
    "transformer multi30k",
    "cnn cifar10",
    "vgg13 cifar100",
    "yolo_v3 voc2007",
)
_NUMBERS = (
    *("--batch", "--epochs", "--buffer-words", "--register-words", "--grid", "--channels", "--bandwidth"),
    "--vector-lanes",
)
_SWEPT = (
    "batch",
    "grid",
    "channels",
    "array",
    "dataflow",
    "bandwidth",
    "buffer-words",
    "epochs",
    "second-array",
    "policy",
)


def _make(draw: random.Random, templates: Path) -> Case:
    words = _pipeline(draw) if draw.random() < 0.4 else _simulate(draw)
    # A search says how far it is, and takes as long as its PEs ask for.
    return Case(f"{words!a}"[:500], lambda: adagp(*words), _odd, stop_seconds=4 if "--search" in words else None)


def _simulate(draw: random.Random) -> list[str]:
    model, data = draw.choice(_NETWORKS).split()
    words = ["simulate", "--json", "--model", model, "--data", data]
    for option in draw.sample(_NUMBERS, draw.randint(0, 4)):
        words += [option, _number(draw)]
    for option in ("--array", "--second-array"):
        if draw.random() < 0.4:
            words += [option, f"{_number(draw)}x{_number(draw)}"]
    if draw.random() < 0.4:
        words += ["--dataflow", draw.choice((*DATAFLOWS, "none"))]
    if draw.random() < 0.3:
        words += ["--policy", draw.choice((*POLICIES, "none")), "--energy", draw.choice((*COST_TABLES, "none"))]
    if draw.random() < 0.3:
        words += ["--stalls"]
    if draw.random() < 0.15:
        words += ["--search", "--pes", str(draw.choice((1, 16, 180, 10**4, 10**9)))]
    if draw.random() < 0.3:
        for name in draw.sample(_SWEPT, draw.choice((1, 1, 2))):
            words += ["--sweep", f"{name}={','.join(_number(draw) for _ in range(draw.choice((1, 2, 3))))}"]
    return words


def _pipeline(draw: random.Random) -> list[str]:
    words = ["pipeline", *draw.choice(((), ("--json",))), "--schedule", draw.choice(list(SCHEMES))]
    for option in ("--devices", "--microbatches"):
        if draw.random() < 0.6:
            words += [option, _number(draw)]
    for option in ("--forward", "--backward", "--predictor", "--communication"):
        if draw.random() < 0.4:
            words += [option, ",".join(_number(draw) for _ in range(draw.choice((1, 1, 2, 4))))]
    if draw.random() < 0.6:
        words += [
            "--phases",
            ",".join(f"{_number(draw)}{draw.choice(('BP', 'GP'))}" for _ in range(draw.choice((1, 2)))),
        ]
    return words


def _number(draw: random.Random) -> str:
    """Mostly a size that can be."""
    if draw.random() < 0.88:
        return str(draw.choice((1, 2, 3, 4, 8, 16, 100, 1000)))
    return draw.choice(("0", "-1", "0.5", "1e-9", "1e18", str(10**7), str(10**15), number_text(draw)))


def _odd() -> str | None:
    """Every figure is a number, and none is negative."""
    text = Path("../stdout").read_text()
    if not text.startswith("{"):
        return None
    return next(_odd_figures(json.loads(text), ""), None)


def _odd_figures(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _odd_figures(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _odd_figures(inner, name)
    elif isinstance(value, int | float) and (not math.isfinite(value) or (value < 0 and "saved" not in name)):
        yield f"{name} = {value}"
    elif value is None and name.split(".")[-1] in ("cycles", "steps", "speed_up", "batch_cycles"):
        yield f"{name} is null"


TARGET = Target("machines", "machines, sweeps, searches, pipelines", 600, _make)
