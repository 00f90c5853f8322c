"""One process at a time writes to a run folder.

The lock is the operating system's: it ends with its process, however that ends, and forked data loaders do not
inherit it.
"""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from adagp.training.errors import FolderInUseError, RunFolderError

_POLL_SECONDS = 0.2
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


def lock(folder: Path) -> BaseFileLock:
    """Lock an existing folder for as long as the returned object lives; callers in one process share it.

    On a file system without locks nothing is locked.

    Raises:
        FolderInUseError: When another process holds the lock.
        RunFolderError: When the folder cannot be written to.
    """
    path = folder.resolve() / ".lock"
    held = FileLock(path, blocking=False, thread_local=False, is_singleton=True, fallback_to_soft=False)
    if held.is_locked:
        return held
    try:
        held.acquire()
    except Timeout:
        raise FolderInUseError(
            f"folder '{folder}' is in use by another process ({_owner(path)}): wait until it ends, or choose another "
            "--out"
        ) from None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return held
        raise RunFolderError(
            f"folder '{folder}' cannot be written to: {error.strerror or error}; check the permissions"
        ) from error
    with suppress(OSError):  # on a full disk the owner stays unnamed
        path.write_text(f"pid {os.getpid()}\n", encoding="utf-8")
    return held


def waiting_lock(folder: Path, patience_seconds: float = 600.0) -> BaseFileLock:
    """Lock an existing folder as soon as no other process holds it; the caller releases it.

    Raises:
        FolderInUseError: When another process holds the lock for longer than `patience_seconds`.
        RunFolderError: When the folder cannot be written to.
    """
    end = time.monotonic() + patience_seconds
    while True:
        try:
            return lock(folder)
        except FolderInUseError:
            if time.monotonic() >= end:
                raise
            time.sleep(_POLL_SECONDS)


def _owner(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")[:40].strip() or "unnamed"
    return "unnamed"
