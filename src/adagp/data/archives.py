"""Archives in the data root, unpacked once and safely.

An archive may come from anywhere. No member is written outside of its folder, links and devices are refused, and so is
an archive that grows to many times its size. The folder gets its final name when it is complete.

`tarfile`'s data filter does not replace the checks: it accepts four of the eleven archives that the tests refuse (an
absolute path, a drive, a backslash, a file twice), and it has no limits.
"""

import contextlib
import errno
import fnmatch
import gzip
import hashlib
import io
import logging
import lzma
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from adagp.data.files import CorruptDataError
from adagp.data.reading import short
from adagp.files import cache_folder

_log = logging.getLogger(__name__)
_Stream = IO[bytes] | gzip.GzipFile | lzma.LZMAFile

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
FOLDER = "unpacked"
MAX_UNPACKED_BYTES = 16 << 30  # eight times VOC 2012, the largest
MAX_RATIO = 20  # compression leaves photographs as they are and text at a quarter; zeros shrink to a thousandth
ALWAYS_BYTES = 64 << 20  # allowed whatever the ratio
MAX_MEMBERS = 200_000  # five times VOC 2012
MAX_DEPTH = 32  # folders in folders; VOC has four
CHUNK = 1 << 20  # the largest read; a header that asks for more is refused
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_STALE_SECONDS = 86_400  # no unpacking takes a day: an older folder was left by a killed process


def places(root: Path | None, pattern: str, checksums: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that may hold a data set: the data root, then each matching archive, unpacked.

    Lazy, so that no archive is unpacked if the root already holds the data set.

    Args:
        root: the data root; None yields nothing.
        pattern: shell pattern of the archives' names without suffix; case is ignored.
        checksums: see `unpack`.

    Raises:
        CorruptDataError: if a matching archive is damaged or unsafe.
    """
    if root is None:
        return
    yield root
    if root.is_dir():
        for path in sorted(root.iterdir()):
            if _stem(path.name) and fnmatch.fnmatchcase(_stem(path.name).lower(), pattern.lower()) and path.is_file():
                yield unpack(path, checksums)


def unpack(archive: Path, checksums: Mapping[str, str]) -> Path:
    """Return the folder with the archive's content; the first call unpacks it.

    It is `unpacked` next to the archive, or in the cache folder if the archive's folder is read-only. The folder's name
    contains a hash of the archive's size and time, so that a replaced archive is unpacked again.

    Args:
        archive: a tar file, compressed or not.
        checksums: md5 or sha256 by archive name; other archives are not verified.

    Raises:
        CorruptDataError: if the archive has another checksum, is damaged, or has a member that is not a plain file or
            folder inside of it.
        OSError: if the disk is full; no partial folder remains.
    """
    status = archive.stat()
    key = hashlib.sha256(f"{archive.name} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:8]
    name = f"{archive.name}-{key}"
    homes = (archive.parent / FOLDER, cache_folder() / FOLDER)
    for home in homes:
        if (home / name).is_dir():
            return home / name
    if archive.name in checksums:
        _verify(archive, checksums[archive.name])
    part = _make_part(homes, name)
    _log.warning("unpacking %s into %s; this is done once", archive, part.parent)
    try:
        _extract(archive, part)
        return _publish(part, part.parent / name)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def unpacked_limit(packed_bytes: int) -> int:
    """Bytes that an archive of this size may unpack to."""
    return min(MAX_UNPACKED_BYTES, max(ALWAYS_BYTES, MAX_RATIO * packed_bytes))


@contextlib.contextmanager
def open_members(archive: Path) -> Iterator[Iterator[tuple[PurePosixPath, IO[bytes] | None]]]:
    """Iterate over the members: the path, and the content or None for a folder.

    Read each content before the next member, in pieces of at most `CHUNK` bytes.

    Raises:
        CorruptDataError: if the archive is damaged, or a member is not a plain file or folder inside of it, or the
            archive exceeds one of the limits above.
        OSError: if the disk is full while the caller writes.
    """
    limit = unpacked_limit(archive.stat().st_size)
    try:
        with archive.open("rb") as packed, _unpacked(packed) as stream:
            bounded = _Bounded(archive, stream, limit)
            with tarfile.open(fileobj=bounded, mode="r:") as source:
                yield _members(archive, source, bounded, limit)
    except (CorruptDataError, PermissionError):
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        raise CorruptDataError(f"{archive}: cannot be read ({error}); get the archive again") from error
    except Exception as error:  # a damaged archive can raise nearly anything, depending on its compression
        raise CorruptDataError(f"{archive}: cannot be read ({error}); get the archive again") from error


def _members(
    archive: Path, source: tarfile.TarFile, stream: "_Bounded", limit: int
) -> Iterator[tuple[PurePosixPath, IO[bytes] | None]]:
    count = total = 0
    last = ""
    while (member := source.next()) is not None:
        source.members.clear()  # type: ignore[attr-defined] # tarfile would keep them all, with their headers
        path = _member_path(archive, member)
        count, total = count + 1, total + member.size
        if member.size < 0:
            raise CorruptDataError(f"{archive}: member {short(member.name)} has a negative size; get the archive again")
        if count > MAX_MEMBERS:
            raise _too_large(archive, f"it has more than {MAX_MEMBERS:,} members")
        if total > limit:
            raise _too_large(archive, f"it unpacks to more than {limit:,} bytes")
        if len(path.parts) > MAX_DEPTH:
            raise _too_large(archive, f"it is deeper than {MAX_DEPTH} folders")
        yield path, source.extractfile(member) if member.isfile() else None
        last = member.name
    # To tarfile a damaged header, or a cut between two members, is the end.
    if stream.last != bytes(tarfile.BLOCKSIZE):
        raise CorruptDataError(f"{archive}: is cut short or damaged after {short(last)}; get the archive again")
    while stream.read(CHUNK):  # the compression's checksum is at the end
        pass


def _too_large(archive: Path, reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"{archive}: {reason}, which is the limit here; if you trust the archive, unpack it yourself"
    )


def _unpacked(packed: IO[bytes]) -> _Stream:
    """The decompressed stream. The first bytes tell the compression, because suffixes are often wrong."""
    head = packed.read(6)
    packed.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=packed)
    return lzma.LZMAFile(packed) if head == b"\xfd7zXZ\0" else packed


class _Bounded(io.RawIOBase):
    """A stream with a limit: a header may claim any length, and tarfile reads that length at once."""

    def __init__(self, archive: Path, stream: _Stream, limit: int) -> None:
        self._archive = archive
        self._stream = stream
        # In addition to its content, a member takes up to three blocks of 512 bytes for headers and padding.
        self._limit = limit + 1536 * MAX_MEMBERS
        self.last = b""

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= CHUNK:
            raise _too_large(self._archive, f"a header in it has more than {CHUNK:,} bytes")
        self._check(self._stream.tell() + size)
        self.last = self._stream.read(size)
        return self.last

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check(offset)
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _check(self, place: int) -> None:
        if place > self._limit:
            raise _too_large(self._archive, f"it unpacks to more than {self._limit:,} bytes, headers included")


def _member_path(archive: Path, member: tarfile.TarInfo) -> PurePosixPath:
    """The path of a member.

    Raises:
        CorruptDataError: if it points outside of the archive, or is neither a file nor a folder.
    """
    path, windows = PurePosixPath(member.name), PureWindowsPath(member.name)
    if path.is_absolute() or windows.drive or windows.root or ".." in path.parts or ".." in windows.parts:
        raise CorruptDataError(
            f"{archive}: member {short(member.name)} points outside of the archive; do not use this file"
        )
    if not (member.isfile() or member.isdir()):
        raise CorruptDataError(f"{archive}: member {short(member.name)} is a link or device; do not use this file")
    return path


def _stem(name: str) -> str:
    """The name without an archive's suffix; empty if the file is not an archive."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.lower().endswith(suffix)), "")


def _verify(archive: Path, expected: str) -> None:
    algorithm = "md5" if len(expected) == 32 else "sha256"
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise CorruptDataError(f"{archive}: has {algorithm} {found}, expected {expected}; get the archive again")


def _make_part(homes: tuple[Path, ...], name: str) -> Path:
    """Make an empty folder with a temporary name in the first of `homes` that is writable."""
    for home in homes[:-1]:
        # The mode decides, because the superuser could also write to a folder that its owner made read-only.
        if home.parent.stat().st_mode & 0o222:
            try:
                return _part_in(home, name)
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
    return _part_in(homes[-1], name)


def _part_in(home: Path, name: str) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(".*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    part = home / f".{name}.{secrets.token_hex(4)}.part"
    part.mkdir()
    return part


def _extract(archive: Path, folder: Path) -> None:
    try:
        with open_members(archive) as members:
            for path, content in members:
                target = folder / path
                if content is None:
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file, CHUNK)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise OSError(error.errno, f"no room to unpack {archive} ({error.strerror})", str(folder.parent)) from error
        raise


def _publish(part: Path, target: Path) -> Path:
    try:
        part.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(part, ignore_errors=True)  # another process was faster, with the same content
    return target
