"""Checkpoints: damaged, foreign, forged, and with code in them."""

import hashlib
import io
import pickle
import random
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fuzz.case import Case, Target
from fuzz.commands import Bomb, adagp, canary, odd_file
from fuzz.mutate import damage, value
from fuzz.targets import runs


def _make(draw: random.Random, templates: Path) -> Case:
    folder = Path("run")
    shutil.copytree(templates / "half", folder)
    path = folder / "checkpoint.pt"
    header, _, body = path.read_bytes().partition(b"\n")
    whole = True  # whether what is accepted must be the run that was saved
    must_refuse = False
    match draw.randrange(12):
        case 0 | 1 | 2:
            content, about = damage(draw, header + b"\n" + body), "damaged bytes"
        case 3:
            place = draw.randrange(len(header))
            content, about = damage(draw, header[place:]) + b"\n" + body, "damaged header"
        case 4:
            words = [draw.choice((word, b"", b"9" * 400, b"x", b"adagp-checkpoint-2")) for word in header.split(b" ")]
            content, about = b" ".join(words) + b"\n" + body, "other words in the header"
        case 5 | 6:
            about, state = _forged(draw, body)
            content, whole = _sealed(_saved(state)), False
        case 7:
            content, about, whole = _sealed(damage(draw, body)), "damaged before it was sealed", False
        case 8 | 9:
            about, foreign = _foreign(draw)
            content, whole = _sealed(foreign) if draw.random() < 0.8 else foreign, False
        case 10:
            about, code = _with_code(draw, body)
            content, whole, must_refuse = _sealed(code) if draw.random() < 0.8 else code, False, True
        case _:
            content, about = b"", odd_file(draw, path)
    if content:
        path.write_bytes(content)
    return Case(
        f"checkpoint.pt: {about}"[:300],
        lambda: adagp("train", "--out", "run", "--resume", "--json"),
        lambda: runs.differs(folder, templates) if whole else None,
        must_refuse,
        stop_seconds=8,
    )


def _sealed(body: bytes) -> bytes:
    """With the header that belongs to it: as if this program had written it."""
    return b"adagp-checkpoint-2 %s %d\n" % (hashlib.sha256(body).hexdigest().encode(), len(body)) + body


def _saved(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _forged(draw: random.Random, body: bytes) -> tuple[str, Any]:
    """The state with one part of it, at any depth, gone or replaced."""
    state = torch.load(io.BytesIO(body), weights_only=True)
    holder, path = state, []
    while True:
        places = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        place = draw.choice(places)
        path.append(str(place))
        inner = holder[place]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.3:
            break
        holder = inner
    if draw.random() < 0.3:
        del holder[place]
        return f"without {'.'.join(path)}", state
    holder[place] = _other(draw, inner)
    return f"another {'.'.join(path)}", state


def _other(draw: random.Random, inner: Any) -> Any:
    if isinstance(inner, torch.Tensor) and draw.random() < 0.7:
        return draw.choice(
            (
                inner.double(),
                inner.reshape(-1)[:1],
                torch.full_like(inner, float("nan")) if inner.is_floating_point() else inner + 1,
                torch.zeros(3, 3, dtype=torch.complex64),
                inner.to_sparse() if inner.dim() else inner,
                torch.empty(0),
                inner.to("meta"),
            )
        )
    return draw.choice((value(draw), torch.zeros(2), {"a": 1}, [], -1, 10**9, None))


def _foreign(draw: random.Random) -> tuple[str, bytes]:
    nested: Any = []
    for _ in range(draw.choice((10, 2000))):
        nested = [nested]
    whole = nn.Linear(2, 2)
    choices: dict[str, Any] = {
        "a tensor": torch.zeros(3),
        "weights": whole.state_dict(),
        "a list": [1, 2],
        "a number": 3,
        "nothing": None,
        "text": "x",
        "an empty dict": {},
        "an ordered dict": OrderedDict(a=1),
        "a digest only": {"digest": "0" * 16},
        "numbers as keys": {1: 2, None: 3},
        "a whole module": whole,
    }
    name = draw.choice((*choices, "deep lists", "legacy", "a zip", "bytes", "a large claim"))
    match name:
        case "deep lists":
            buffer = io.BytesIO()
            depth = draw.choice((10, 1000, 100_000))
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("archive/data.pkl", b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
                archive.writestr("archive/version", b"3\n")
            return name, buffer.getvalue()
        case "legacy":
            buffer = io.BytesIO()
            torch.save({"a": torch.zeros(2)}, buffer, _use_new_zipfile_serialization=False)
            return name, damage(draw, buffer.getvalue()) if draw.random() < 0.5 else buffer.getvalue()
        case "a zip":
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr(draw.choice(("a.txt", "archive/data.pkl", "data.pkl")), draw.randbytes(30))
            return name, buffer.getvalue()
        case "bytes":
            return name, draw.randbytes(draw.choice((1, 100, 5000)))
        case "a large claim":
            # A tensor of 40 GB in a few hundred bytes: a storage of one number, strides of zero or lies.
            sizes = draw.choice(((10**10,), (10**5, 10**5), (2**62,)))
            return name, _saved({"digest": torch.zeros(1).expand(*sizes)})
        case _:
            return name, _saved(choices[name])


def _with_code(draw: random.Random, body: bytes) -> tuple[str, bytes]:
    """Files that leave the canary when their pickle is executed."""
    pickled = pickle.dumps({"digest": Bomb(canary())}, protocol=draw.choice((2, 3, 4)))
    match draw.randrange(4):
        case 0:
            return "a bare pickle with code", pickled
        case 1:
            return "a state with code in it", _saved({"digest": "0" * 16, "model": Bomb(canary())})
        case 2:
            buffer = io.BytesIO()
            torch.save({"gp": Bomb(canary())}, buffer, _use_new_zipfile_serialization=False)
            return "code in the legacy format", buffer.getvalue()
        case _:
            buffer = io.BytesIO()
            with zipfile.ZipFile(io.BytesIO(body)) as old, zipfile.ZipFile(buffer, "w") as new:
                for name in old.namelist():
                    new.writestr(name, pickled if name.endswith("data.pkl") else old.read(name))
            return "code in the place of the run's pickle", buffer.getvalue()


TARGET = Target("checkpoints", "checkpoints: damaged, foreign, forged, with code", 900, _make, runs.prepare)
