"""Reading whole files up to a limit, because a few bytes of gzip can hold gigabytes.

Each reader names its limit, several times the size of the largest known file.
"""

import gzip
import zlib
from pathlib import Path

from adagp.data.files import CorruptDataError

_CHUNK = 1 << 20


def read_limited(path: Path, max_bytes: int, remedy: str) -> bytes:
    """Read a file; one whose name ends in .gz is unpacked.

    Args:
        path: the file.
        max_bytes: limit on the unpacked size.
        remedy: what to do about an unusable file; it ends each message.

    Raises:
        CorruptDataError: if it is larger, cannot be read, or is not a regular file (reading a named pipe would block).
        PermissionError: if the user may not read it.
    """
    if not path.is_file():
        raise CorruptDataError(f"{path}: is not a regular file; {remedy}")
    content = bytearray()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            # In pieces, because gzip may return any number of bytes for one read.
            while len(content) <= max_bytes and (piece := file.read(_CHUNK)):
                content += piece
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptDataError(f"{path}: cannot be read ({error}); {remedy}") from error
    if len(content) > max_bytes:
        raise CorruptDataError(f"{path}: has more than {max_bytes:,} bytes, the limit for such a file; {remedy}")
    return bytes(content)


def decode_text(path: Path, content: bytes, remedy: str) -> str:
    """Decode the content of a text file.

    Raises:
        CorruptDataError: if it is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"{path}: is not UTF-8 (byte 0x{content[error.start]:02x} at {error.start}); {remedy}"
        ) from error


def short(text: str) -> str:
    """The first 80 characters, quoted: a name in a damaged file may have a million."""
    return repr(text[:80]) + ("..." if len(text) > 80 else "")
