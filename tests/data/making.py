"""Small archives and images made by the tests, and a check that several tests share."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from adagp import data


def member(name: str, size: int = 0, **fields: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = size
    for key, value in fields.items():
        setattr(found, key, value)
    return found


def write_archive(path: Path, files: Mapping[str, bytes], *, extra: tarfile.TarInfo | None = None) -> Path:
    """A tar file, compressed as its name says, with `extra` (of zero bytes) in front of the files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    form = {".tar": "", ".gz": "gz", ".tgz": "gz", ".xz": "xz"}[path.suffix]
    with tarfile.open(path, f"w:{form}") as archive:  # type: ignore[call-overload]
        if extra is not None:
            archive.addfile(extra, io.BytesIO(bytes(extra.size)))
        for name, content in files.items():
            archive.addfile(member(name, len(content)), io.BytesIO(content))
    return path


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def picture(width: int, height: int, seed: int = 0, form: str = "PNG", mode: str = "RGB") -> bytes:
    """A gradient that differs by seed, smooth enough to survive JPEG."""
    image = Image.new("RGB", (width, height))
    image.putdata([(x * 255 // width, y * 255 // height, seed * 40 % 256) for y in range(height) for x in range(width)])
    buffer = io.BytesIO()
    image.convert(mode).save(buffer, form)
    return buffer.getvalue()


def check_constants(dataset: data.DataSet) -> None:
    """Mean, deviation and shape are those of the images."""
    pixels = dataset.train.images.double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=1e-3)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(dataset.std, abs=1e-3)
    assert dataset.train.images.shape[1:] == (dataset.channels, dataset.size, dataset.size)
    assert dataset.test.images.shape[1:] == (dataset.channels, dataset.size, dataset.size)
