"""JSON that any reader accepts, written so that one sees the old content or the new, never a part."""

import json
import math
from pathlib import Path
from typing import Any

from adagp.data.files import write_atomically


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as strict, readable JSON (see `strict`)."""
    write_bytes(path, (json.dumps(strict(value), indent=1, allow_nan=False) + "\n").encode())


def strict(value: Any) -> Any:
    """`value` with every NaN and infinity replaced by None, which JSON has no other word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
