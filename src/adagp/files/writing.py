"""Files are written whole or not at all."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from adagp.files.values import strict

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a file that appears under `path` whole or not at all, also when two processes do so at once.

    The bytes go to a temporary file in the same folder and reach the disk before the name changes, so a full disk, a
    crash or a power cut leaves the previous file untouched. The file's permissions follow the user's umask. What
    killed writes of the same file left is removed.

    Raises:
        OSError: When the bytes could not be written; what stood at `path` before is then untouched.
    """
    remove_leftovers(path.parent, path.name)
    while not _write_once(path, path.with_name(f".{path.name}.{secrets.token_hex(4)}.part"), write):
        pass
    _sync_folder(path.parent)


def _write_once(path: Path, temporary: Path, write: Callable[[IO[bytes]], object]) -> bool:
    """False where another process took the temporary file for a leftover before it was locked."""
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with _claimed(descriptor):
            with os.fdopen(descriptor, "wb") as file:
                if not temporary.exists():
                    return False
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except BlockingIOError:
        return False
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.strerror:  # the user knows the file, not its temporary name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return True


@contextlib.contextmanager
def _claimed(descriptor: int) -> Iterator[None]:
    """Lock a file until its name has changed: the lock tells a write under way from what a killed one left.

    Raises:
        BlockingIOError: Another process is about to remove the file.
    """
    if fcntl is None:
        yield
        return
    claim = os.dup(descriptor)  # the other is closed before the name changes, and the lock goes with the last of both
    try:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(claim)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed writes left in a folder, of the file `name` or of all; a write under way is left alone.

    Where the system or the folder's disk has no locks, leftovers look like a write under way, and all of them stay.
    """
    stem = ".+" if name is None else re.escape(name)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            written = re.fullmatch(rf"\.{stem}\.[0-9a-f]{{8}}\.part", entry.name)
            if fcntl is not None and written and entry.is_file(follow_symlinks=False):
                _remove_unless_claimed(Path(entry.path))


def _remove_unless_claimed(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as strict, readable JSON (see `strict`)."""
    write_bytes(path, (json.dumps(strict(value), indent=1, allow_nan=False) + "\n").encode())
