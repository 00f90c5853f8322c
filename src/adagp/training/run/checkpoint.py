"""Checkpoint files: written whole or not at all, and verified before they are decoded.

A checkpoint is one line (format, SHA-256 and length of the rest) followed by the output of `torch.save`. The line
reveals a damaged or foreign file before anything is decoded. Decoding is restricted to tensors and plain values
(`weights_only=True`).
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from adagp.files import read_bytes, write_bytes
from adagp.training.errors import CheckpointError

FORMAT = b"adagp-checkpoint-2"
_LONGEST_HEADER = 256


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path`; the previous one stays if anything goes wrong.

    Raises:
        CheckpointError: When the file cannot be written, for example because the disk is full.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    header = b"%s %s %d\n" % (FORMAT, hashlib.sha256(body).hexdigest().encode(), len(body))
    try:
        write_bytes(path, header + body)
    except OSError as error:
        kept = "the previous checkpoint is untouched" if path.exists() else "there is no earlier checkpoint"
        raise CheckpointError(
            f"checkpoint '{path}' cannot be saved: {error.strerror or error}; {kept}. Free some space or check the "
            "permissions, then resume"
        ) from error


def load(path: Path, device: torch.device | None = None) -> dict[str, Any]:
    """Read a checkpoint that `save` wrote, its tensors on `device` (default: the CPU).

    Raises:
        CheckpointError: When the file is missing, damaged, or not a checkpoint of this program.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise CheckpointError(f"checkpoint '{path}' cannot be read: {error.strerror or error}") from error
    header, newline, body = content.partition(b"\n")
    fields = header.split(b" ") if newline and len(header) <= _LONGEST_HEADER else []
    if len(fields) != 3 or not fields[0].startswith(b"adagp-checkpoint-"):
        raise CheckpointError(f"'{path}' is not an adagp checkpoint: give the checkpoint.pt of a run folder")
    if fields[0] != FORMAT:
        raise CheckpointError(
            f"checkpoint '{path}' has format {fields[0].decode(errors='replace')}, this version of adagp reads "
            f"{FORMAT.decode()}: use the version that wrote it"
        )
    if fields[2] != str(len(body)).encode() or hashlib.sha256(body).hexdigest().encode() != fields[1]:
        raise CheckpointError(
            f"checkpoint '{path}' is damaged ({len(body)} bytes of content, checksum or length differ): restore the "
            "file from a copy, or start the run again in a new folder"
        )
    try:
        state = torch.load(io.BytesIO(body), map_location=device or "cpu", weights_only=True)
    except Exception as error:  # a foreign archive can fail in any way
        raise CheckpointError(
            f"checkpoint '{path}' does not hold the state of a run ({type(error).__name__}): restore the file from a "
            "copy, or start the run again in a new folder"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(
            f"checkpoint '{path}' holds a {type(state).__name__}, not a run: restore the file from a copy, or start "
            "the run again in a new folder"
        )
    return state
