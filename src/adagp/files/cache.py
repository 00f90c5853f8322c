"""The folder for what can be made again: compiled kernels, converted data, the machine code of yosys."""

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

_LOG = logging.getLogger(__name__)


def cache_folder() -> Path:
    """ADAGP_CACHE, or adagp in the user's cache folder, or a private temporary folder for a user without a home.

    A folder that is named is taken as it is; the first write to it reports what is wrong.
    """
    named = os.environ.get("ADAGP_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "adagp"
    try:
        folder = Path.home() / ".cache" / "adagp"
    except RuntimeError:  # no HOME, and the user has no entry among the system's users
        return _temporary_folder()
    return folder if _can_be_made(folder) else _temporary_folder()


def _can_be_made(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


@cache
def _temporary_folder() -> Path:
    """The same folder for all processes of a user.

    Libraries are loaded from it, and everyone may write beside it: so another user's folder of that name is not used.
    """
    folder = Path(tempfile.gettempdir()) / f"adagp-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        own = _is_private(folder)
    except OSError:
        own = False
    if not own:
        folder = Path(tempfile.mkdtemp(prefix="adagp-"))
    _LOG.warning("there is no home folder to keep a cache in: it is in %s; set ADAGP_CACHE to choose another", folder)
    return folder


def _is_private(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
