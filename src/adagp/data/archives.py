"""Archives found in the data root: unpacked once, and only what cannot do harm.

An archive may come from anywhere. So no member lands outside of the folder made for it, links and devices are refused,
nothing grows to many times its size, and the folder gets its name only when everything is in it: whoever finds the
folder finds it whole.
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

from adagp.cache import cache_folder
from adagp.data.files import CorruptDataError
from adagp.data.reading import short

_log = logging.getLogger(__name__)
_Stream = IO[bytes] | gzip.GzipFile | lzma.LZMAFile

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
FOLDER = "unpacked"
MAX_UNPACKED_BYTES = 16 << 30  # eight times VOC 2012, the largest
MAX_RATIO = 20  # photographs do not shrink, text does to a quarter; zeros shrink to a thousandth
ALWAYS_BYTES = 64 << 20  # fine whatever the ratio
MAX_MEMBERS = 200_000  # five times VOC 2012
MAX_DEPTH = 32  # folders in folders; VOC has four
CHUNK = 1 << 20  # the most that is read at once; a header that wants more is none
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_STALE_SECONDS = 86_400  # no unpacking takes a day, so what is older was left by a process that was killed


def places(root: Path | None, pattern: str, checksums: Mapping[str, str]) -> Iterator[Path]:
    """Folders in which a data set may lie: the data root itself, then each matching archive, unpacked.

    A generator, so that nothing is unpacked where the root itself already holds what is looked for.

    Args:
        root: the data root; None gives nothing.
        pattern: shell pattern of the archives' names without suffix, whatever the case.
        checksums: see `unpack`.

    Raises:
        CorruptDataError: if an archive reached is damaged, or not a plain one.
    """
    if root is None:
        return
    yield root
    if root.is_dir():
        for path in sorted(root.iterdir()):
            if _stem(path.name) and fnmatch.fnmatchcase(_stem(path.name).lower(), pattern.lower()) and path.is_file():
                yield unpack(path, checksums)


def unpack(archive: Path, checksums: Mapping[str, str]) -> Path:
    """The folder with the archive's content, made if it is not there yet.

    It is made beside the archive, in `unpacked`, or in the cache folder where the archive's own is read-only. The name
    tells the archive's size and time, so that an archive that was replaced is unpacked anew.

    Args:
        archive: a tar file, compressed or not.
        checksums: md5 or sha256 by archive name; names that are not in it are not verified.

    Raises:
        CorruptDataError: if the archive has another checksum, is damaged, or has a member that is not a plain file or
            folder inside of it.
        OSError: if there is no room for it; nothing is then left behind.
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
    """How many bytes an archive of this size may unpack to."""
    return min(MAX_UNPACKED_BYTES, max(ALWAYS_BYTES, MAX_RATIO * packed_bytes))


@contextlib.contextmanager
def open_members(archive: Path) -> Iterator[Iterator[tuple[PurePosixPath, IO[bytes] | None]]]:
    """The members that may be read or unpacked, in order: the path, and the content or None for a folder.

    Each content is to be read before the next member is asked for, in pieces of `CHUNK` at most.

    Raises:
        CorruptDataError: if the archive is damaged, or a member is not a plain file or folder inside of it, or the
            archive exceeds one of the limits above.
        OSError: if there is no room for what the caller writes meanwhile.
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
    except Exception as error:  # a damaged archive can raise nearly anything, by its compression
        raise CorruptDataError(f"{archive}: cannot be read ({error}); get the archive again") from error


def _members(
    archive: Path, source: tarfile.TarFile, stream: "_Bounded", limit: int
) -> Iterator[tuple[PurePosixPath, IO[bytes] | None]]:
    count = total = 0
    last = ""
    while (member := source.next()) is not None:
        source.members.clear()  # type: ignore[attr-defined] # or each would be kept, with all its headers
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
    # tarfile takes a file cut between two members, and a damaged header, as the end.
    if stream.last != bytes(tarfile.BLOCKSIZE):
        raise CorruptDataError(f"{archive}: is cut short or damaged after {short(last)}; get the archive again")
    while stream.read(CHUNK):  # to the end, where the compression has its checksum
        pass


def _too_large(archive: Path, reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"{archive}: {reason}, the most that is unpacked here; if you trust the archive, unpack it yourself"
    )


def _unpacked(packed: IO[bytes]) -> _Stream:
    """The stream of tar, whatever it is compressed with, by its first bytes: names are often wrong."""
    head = packed.read(6)
    packed.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=packed)
    return lzma.LZMAFile(packed) if head == b"\xfd7zXZ\0" else packed


class _Bounded(io.RawIOBase):
    """A stream that refuses to go on for ever: a header may claim any length, and tarfile reads as much at once."""

    def __init__(self, archive: Path, stream: _Stream, limit: int) -> None:
        self._archive = archive
        self._stream = stream
        # Headers and padding take up to three blocks of 512 bytes a member, beside the contents.
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
    """The path of a member, if it is one that may be read.

    Raises:
        CorruptDataError: if it points out of the archive or is neither file nor folder.
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
    """The name without an archive's suffix, empty for what is no archive."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.lower().endswith(suffix)), "")


def _verify(archive: Path, expected: str) -> None:
    algorithm = "md5" if len(expected) == 32 else "sha256"
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise CorruptDataError(f"{archive}: has {algorithm} {found}, expected {expected}; get the archive again")


def _make_part(homes: tuple[Path, ...], name: str) -> Path:
    """An empty folder of our own in the first of `homes` that can be written, under a name nobody looks for."""
    for home in homes[:-1]:
        # The superuser may write anywhere, also where the owner of the data said read-only by the folder's mode.
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
        shutil.rmtree(part, ignore_errors=True)  # another process was quicker, with the same content
    return target
