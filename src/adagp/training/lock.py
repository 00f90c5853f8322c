"""One process at a time writes to a run folder.

The lock is the operating system's, so that it goes with its process, however that ends, and is not inherited by the
workers that load data.
"""

import os
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from adagp.training.errors import RunFolderError

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

_held: "WeakValueDictionary[Path, FolderLock]" = WeakValueDictionary()


class FolderLock:
    """Held as long as this object lives; made by `lock`."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of a folder that exists.

        Raises:
            RunFolderError: When another process has it, or the folder cannot be written to.
        """
        path = folder / ".lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise RunFolderError(
                f"folder '{folder}' cannot be written to: {error.strerror or error}; check the permissions"
            ) from error
        finalize(self, os.close, self._file)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.read(self._file, 40).decode().strip() or "unnamed"
            raise RunFolderError(
                f"folder '{folder}' is in use by another process ({owner}): wait until that has ended, or choose "
                "another --out"
            ) from None
        except OSError:
            return  # a file system without locks
        with suppress(OSError):  # on a full disk the owner stays unnamed
            os.truncate(self._file, 0)
            os.write(self._file, f"pid {os.getpid()}\n".encode())


def lock(folder: Path) -> FolderLock | None:
    """The lock of a folder, which all of this process share; None where there are no locks."""
    if fcntl is None:
        return None
    key = folder.resolve()
    found = _held.get(key)
    if found is None:
        found = _held[key] = FolderLock(folder)
    return found
