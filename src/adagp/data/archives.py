"""Archives found in the data root: unpacked once, and only what cannot do harm.

An archive may come from anywhere. So no member lands outside of the folder made for it, links and devices are refused,
and the folder gets its name only when everything is in it: whoever finds the folder finds it whole.
"""

import contextlib
import errno
import fnmatch
import hashlib
import logging
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from adagp.data.files import CorruptDataError, cache_folder

_log = logging.getLogger(__name__)

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
FOLDER = "unpacked"
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
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


def member_path(archive: Path, member: tarfile.TarInfo) -> PurePosixPath:
    """The path of a member that may be read or unpacked.

    Raises:
        CorruptDataError: if it points out of the archive or is neither file nor folder.
    """
    path, windows = PurePosixPath(member.name), PureWindowsPath(member.name)
    if path.is_absolute() or windows.drive or windows.root or ".." in path.parts or ".." in windows.parts:
        raise CorruptDataError(f"{archive}: member {member.name!r} points outside of the archive; do not use this file")
    if not (member.isfile() or member.isdir()):
        raise CorruptDataError(f"{archive}: member {member.name!r} is a link or device; do not use this file")
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
        with tarfile.open(archive) as source:
            for member in source:
                target = folder / member_path(archive, member)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                content = source.extractfile(member)
                assert content is not None  # holds for every regular file
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
            if archive.suffix.lower() == ".tar" and not _ends_with_zeros(archive):
                raise CorruptDataError(f"{archive}: is cut short; get the archive again")
    except (CorruptDataError, PermissionError):
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(error.errno, f"no room to unpack {archive} ({error.strerror})", str(folder.parent)) from error
        raise CorruptDataError(f"{archive}: cannot be read ({error}); get the archive again") from error
    except Exception as error:  # a damaged archive can raise nearly anything, by its compression
        raise CorruptDataError(f"{archive}: cannot be read ({error}); get the archive again") from error


def _ends_with_zeros(archive: Path) -> bool:
    """Whether a tar file has its closing blocks: without them tarfile takes a file cut between two members as whole."""
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - 1024))
        return file.read() == bytes(1024)


def _publish(part: Path, target: Path) -> Path:
    try:
        part.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(part, ignore_errors=True)  # another process was quicker, with the same content
    return target
