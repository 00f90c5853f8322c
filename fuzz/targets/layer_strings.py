"""Layers as text for the accelerator model: `c_in=64,c_out=64,out=32x32,kernel=3`, and sizes that no layer has."""

import json
import random
from math import prod
from pathlib import Path
from typing import Any

from adagp.accelerator import DATAFLOWS
from fuzz.case import Case, Target
from fuzz.commands import adagp
from fuzz.mutate import damage_text, junk, number_text

_KEYS = ("c_in", "c_out", "out", "kernel", "stride", "groups", "in")


def _make(draw: random.Random, templates: Path) -> Case:
    text = _layer(draw)
    if draw.random() < 0.3:
        text = damage_text(draw, text)
    words = ["simulate", f"--layer={text}", "--json"]
    if draw.random() < 0.5:
        words += ["--batch", str(draw.choice((1, 2, 128, 10**6, 10**12)))]
    if draw.random() < 0.5:
        words += ["--array", draw.choice(("1x1", "12x15", "3x200", "64x64", "10000x10000"))]
    words += ["--dataflow", draw.choice(list(DATAFLOWS))]
    return Case(f"{words[1:]!a}"[:500], lambda: adagp(*words), _differs)


def _layer(draw: random.Random) -> str:
    keys = draw.sample(_KEYS, draw.randint(1, len(_KEYS))) if draw.random() < 0.2 else _KEYS
    given = [key for key in keys if key in ("c_in", "c_out") or draw.random() < 0.7]
    parts = [f"{key}={_size(draw, key)}" for key in given]
    return draw.choice((",", ",", ",", ", ", ",,", ";")).join(parts)


def _size(draw: random.Random, key: str) -> str:
    if draw.random() < 0.04:
        return number_text(draw)
    ordinary = {"kernel": (1, 3, 5, 7, 11), "stride": (1, 1, 2, 4), "groups": (1, 1, 1, 1, 1, 2, 64)}
    sizes = [draw.choice(ordinary.get(key, (1, 2, 3, 16, 64, 97, 512))) for _ in range(draw.choice((1, 2)))]
    if draw.random() < 0.03:
        sizes[0] = draw.choice((0, -1, 10**4, 10**6, 2**31, 10**15))
    return "x".join(map(str, sizes if key not in ("c_in", "c_out", "groups") else sizes[:1])) + (
        draw.choice(("", junk(draw))) if draw.random() < 0.05 else ""
    )


def _differs() -> str | None:
    """Multiply-adds by the definition, and no more of them in a cycle than there are PEs."""
    told: dict[str, Any] = json.loads(Path("../stdout").read_text())
    layer, array = told["layer"], told["array"]
    positions = prod(layer["image"] if layer["transposed"] else layer["out"])
    macs = layer["batch"] * positions * layer["c_out"] * (layer["c_in"] // layer["groups"]) * prod(layer["kernel"])
    for which in ("forward", "input_grad", "weight_grad"):
        cost = told[which]
        if not 0 < cost["macs"] <= cost["cycles"] * array["rows"] * array["columns"]:
            return f"{which}: {cost['macs']} multiply-adds in {cost['cycles']} cycles"
    if told["forward"]["macs"] != macs:
        return f"forward: {told['forward']['macs']} multiply-adds, by the definition {macs}"
    return None


TARGET = Target("layer-strings", "layers as text for `simulate --layer`", 600, _make)
