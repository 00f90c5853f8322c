"""Files read whole, but never more of them than a file of their kind can have: a few bytes of gzip can hold gigabytes.

Every limit is a named constant beside its reader, with room for several times the largest file known.
"""

import gzip
import zlib
from pathlib import Path

from adagp.data.files import CorruptDataError

_CHUNK = 1 << 20


def read_limited(path: Path, max_bytes: int, remedy: str) -> bytes:
    """The file's content, unpacked if its name ends in .gz.

    Args:
        path: the file.
        max_bytes: what no file of this kind exceeds, unpacked.
        remedy: what to do about a file that cannot be used; the end of each message.

    Raises:
        CorruptDataError: if it is larger, cannot be read, or is no regular file (reading a pipe would wait for ever).
        PermissionError: if the user may not read it.
    """
    if not path.is_file():
        raise CorruptDataError(f"{path}: is no regular file; {remedy}")
    content = bytearray()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            # In pieces, since a gzip file may give any number of bytes for one read.
            while len(content) <= max_bytes and (piece := file.read(_CHUNK)):
                content += piece
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptDataError(f"{path}: cannot be read ({error}); {remedy}") from error
    if len(content) > max_bytes:
        raise CorruptDataError(f"{path}: has more than {max_bytes:,} bytes, the most such a file may have; {remedy}")
    return bytes(content)


def decode_text(path: Path, content: bytes, remedy: str) -> str:
    """The text of a file's content.

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
    """Enough of a text to find it by, quoted: what a damaged file calls a name may have a million characters."""
    return repr(text[:80]) + ("..." if len(text) > 80 else "")
