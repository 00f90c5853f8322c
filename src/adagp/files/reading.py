"""Files are read as regular files, in UTF-8."""

import errno
import os
import stat
from pathlib import Path


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
