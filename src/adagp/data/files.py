"""What the loaders share: finding packaged files, whole-or-nothing writing, a fair split."""

import contextlib
import importlib.util
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor


class MissingDataError(FileNotFoundError):
    """Data is not where it was looked for; the message states the layout expected and where to get it."""


class CorruptDataError(ValueError):
    """A file is there but is not what it should be; the message names the file, the fault and the remedy."""


def missing(name: str, root: Path | None, layout: Sequence[str], source: str) -> MissingDataError:
    """The error for a set that was not found, in one line: what was expected, and where to get it."""
    where = f"it is not in {root}" if root else "no data root was named"
    return MissingDataError(
        f"{name}: {where}. Expected, with ROOT the folder named by --data-root or ADAGP_DATA: {'; '.join(layout)}."
        f" {source}"
    )


def packaged_file(package: str, *parts: str, distribution: str) -> Path:
    """Path of a file inside an installed package, without importing it: both packages used here take seconds to import.

    Raises:
        MissingDataError: if the package or the file in it is absent.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        path = Path(location, *parts)
        if path.is_file():
            return path
    file = "/".join((package, *parts))
    if spec is None:
        raise MissingDataError(f"{file}: package {distribution!r} is not installed; get it: pip install 'adagp[data]'")
    raise MissingDataError(
        f"{file}: package {distribution!r} is installed without this file; get it: pip install --force-reinstall "
        f"--no-deps {distribution}"
    )


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a file that appears under `path` whole or not at all, also when two processes do so at once.

    The bytes go to a temporary file in the same folder and reach the disk before the name changes, so a full disk, a
    crash or a power cut leaves the previous file untouched. The file's permissions follow the user's umask.

    Raises:
        OSError: When the bytes could not be written; what stood at `path` before is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.strerror:  # the user knows the file, not its temporary name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def interleaved_order(labels: Tensor) -> Tensor:
    """Indices that spread every class evenly from first to last, keeping the order inside each class.

    Any prefix then has the classes in the proportions of the whole, so that one cut makes a stratified split and a
    limited run sees every class. A rule rather than a seed: the split is the same on every machine for ever.
    """
    position = torch.empty(len(labels), dtype=torch.float64)
    for label in set(labels.tolist()):
        members = labels == label
        count = int(members.sum())
        position[members] = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    # Ties are broken by class, so that the order does not depend on that of the file.
    by_class = torch.argsort(labels, stable=True)
    return by_class[torch.argsort(position[by_class], stable=True)]
