"""Small archives and images made by the tests."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image


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
