"""Files: written whole or not at all, and read without trust in what they hold. Needs no torch."""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

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


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; a pipe or a device, which might never end, is refused.

    Raises:
        OSError: When it is none, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read()


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8, in every locale.

    Raises:
        OSError: When it is no regular file, or cannot be read.
        ValueError: When it is not UTF-8.
    """
    text = read_bytes(path).decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN, no name twice, nothing that is too large or too deep to work with (see `_bearable`).

    Raises:
        ValueError: When it is something else.
    """
    try:
        return _bearable(json.loads(text, parse_constant=_no_number, parse_int=_whole, object_pairs_hook=_object))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """TOML with nothing in it that is too large or too deep to work with (see `_bearable`).

    Raises:
        ValueError: When it is something else; `tomllib.TOMLDecodeError` where it is no TOML at all.
    """
    try:
        table: dict[str, Any] = _bearable(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python converts no number of thousands of digits
        raise ValueError(_TOO_LARGE if "digits" in str(error) else str(error)) from None
    return table


_DEEPEST = 64
_LARGEST = 2**63 - 1
_TOO_DEEP = f"it is nested more than {_DEEPEST} levels deep"
_TOO_LARGE = f"a whole number in it is too large: at most {_LARGEST}"


def _bearable(value: Any) -> Any:
    """The value, if other code can work with it: 64-bit numbers, and no deeper than a recursive function can go."""
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        if any(isinstance(item, int) and abs(item) > _LARGEST for item in level):
            raise ValueError(_TOO_LARGE)
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level, depth = [item for items in inner for item in items], depth + 1
    return value


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(_TOO_LARGE)
    return int(digits)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' is there twice")
    return found


def strict(value: Any) -> Any:
    """`value` with every NaN and infinity replaced by None, which JSON has no other word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
