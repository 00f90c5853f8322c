"""Writing files so that a reader sees the old content or the new, never a part."""

import contextlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step.

    The bytes go to a temporary file in the same folder and reach the disk before the name changes, so a full disk, a
    crash or a power cut leaves the previous file untouched. The temporary file is removed when writing fails.

    Raises:
        OSError: When the bytes could not be written; `path` is then as it was.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as strict, readable JSON (see `strict`)."""
    write_atomic(path, (json.dumps(strict(value), indent=1, allow_nan=False) + "\n").encode())


def strict(value: Any) -> Any:
    """`value` with every NaN and infinity replaced by None, which JSON has no other word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
