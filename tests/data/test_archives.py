import errno
import gzip
import hashlib
import lzma
import multiprocessing
import os
import signal
import tarfile
import time
import tracemalloc
from pathlib import Path

import pytest

from adagp import data
from adagp.data import archives
from tests.data.making import member, write_archive, write_files

FILES = {"set/a/1.txt": b"one", "set/a/2.txt": b"two" * 1000, "set/b.txt": b""}


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _process(archive: Path) -> multiprocessing.Process:
    """Another process that unpacks; forked, because a new one would import torch for seconds."""
    process = multiprocessing.get_context("fork").Process(target=archives.unpack, args=(archive, {}))
    process.start()
    return process  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", archives.SUFFIXES)
def test_an_archive_is_unpacked_once_into_the_data_root(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    archive = write_archive(tmp_path / "root" / f"set{suffix}", FILES)
    folder = archives.unpack(archive, {})
    assert folder.parent == tmp_path / "root" / "unpacked"
    assert _content(folder) == FILES
    assert list(folder.parent.iterdir()) == [folder]
    assert not cache.exists()
    monkeypatch.delattr(tarfile, "open")  # whoever opened it again would fail
    assert archives.unpack(archive, {}) == folder


def test_an_archive_that_was_replaced_is_unpacked_anew(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "set.tar.gz", FILES)
    archives.unpack(archive, {})
    write_archive(archive, {"set/new.txt": b"new"})
    assert _content(archives.unpack(archive, {})) == {"set/new.txt": b"new"}


def test_a_read_only_root_sends_it_to_the_cache(tmp_path: Path, cache: Path) -> None:
    archive = write_archive(tmp_path / "root" / "set.tar.xz", FILES)
    archive.parent.chmod(0o555)
    try:
        folder = archives.unpack(archive, {})
        assert archives.unpack(archive, {}) == folder
    finally:
        archive.parent.chmod(0o755)
    assert folder.parent == cache / "unpacked"
    assert _content(folder) == FILES
    assert list(archive.parent.iterdir()) == [archive]


def test_a_read_only_file_system_sends_it_to_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(tmp_path / "root" / "set.tar.gz", FILES)
    mkdir = Path.mkdir

    def refuse(self: Path, *arguments: int, **options: bool) -> None:
        if archive.parent in self.parents:
            raise OSError(errno.EROFS, "Read-only file system", str(self))
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert archives.unpack(archive, {}).parent == cache / "unpacked"


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (member("../escaped", 3), "outside"),
        (member("set/../../escaped", 3), "outside"),
        (member("/tmp/escaped", 3), "outside"),
        (member("..\\escaped", 3), "outside"),
        (member("C:\\escaped", 3), "outside"),
        (member("set/link", type=tarfile.SYMTYPE, linkname="/etc/hostname"), "link"),
        (member("set", type=tarfile.SYMTYPE, linkname="/tmp"), "link"),
        (member("set/hard", type=tarfile.LNKTYPE, linkname="../escaped"), "link"),
        (member("set/fifo", type=tarfile.FIFOTYPE), "device"),
        (member("set/device", type=tarfile.CHRTYPE), "device"),
        (member("set/b.txt", 3), "cannot be read"),
    ],
    ids=["parent", "inner", "absolute", "backslash", "drive", "link", "folder-link", "hard", "fifo", "device", "twice"],
)
def test_archives_that_are_not_plain_are_refused_and_leave_nothing(
    tmp_path: Path, extra: tarfile.TarInfo, reason: str
) -> None:
    archive = write_archive(tmp_path / "root" / "set.tar.gz", FILES, extra=extra)
    with pytest.raises(data.CorruptDataError, match=rf"set\.tar\.gz.*{reason}"):
        archives.unpack(archive, {})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]
    assert list((tmp_path / "root" / "unpacked").iterdir()) == []


@pytest.mark.parametrize("suffix", archives.SUFFIXES)
@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_damaged_archives_are_refused_by_name_and_leave_nothing(tmp_path: Path, suffix: str, damage: str) -> None:
    archive = write_archive(tmp_path / f"set{suffix}", {f"set/{n}": os.urandom(3000) for n in range(5)})
    content = archive.read_bytes()
    changed = {"cut": content[: len(content) // 2], "empty": b"", "noise": os.urandom(len(content))}[damage]
    archive.write_bytes(changed)
    with pytest.raises(data.CorruptDataError, match=rf"set{suffix}"):
        archives.unpack(archive, {})
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_a_tar_file_cut_between_two_members_is_not_taken_as_whole(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "set.tar", {"set/1": b"x" * 512, "set/2": b"y" * 512})
    archive.write_bytes(archive.read_bytes()[:1024])
    with tarfile.open(archive) as cut:
        assert cut.getnames() == ["set/1"]  # tarfile itself does not mind
    with pytest.raises(data.CorruptDataError, match="cut short"):
        archives.unpack(archive, {})


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_known_checksum_is_verified(tmp_path: Path, algorithm: str) -> None:
    archive = write_archive(tmp_path / "set.tar.gz", FILES)
    right = hashlib.new(algorithm, archive.read_bytes(), usedforsecurity=False).hexdigest()
    with pytest.raises(data.CorruptDataError, match=f"set.tar.gz: has {algorithm} {right}, expected 0000"):
        archives.unpack(archive, {"set.tar.gz": "0" * len(right)})
    assert not (tmp_path / "unpacked").exists()
    archives.unpack(archive, {"set.tar.gz": right, "other.tar.gz": "0" * 32})


def test_an_interrupted_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path / "set.tar.gz", FILES)
    with monkeypatch.context() as patch:
        patch.setattr(archives.shutil, "copyfileobj", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            archives.unpack(archive, {})
    assert list((tmp_path / "unpacked").iterdir()) == []
    assert _content(archives.unpack(archive, {})) == FILES


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path / "set.tar.gz", FILES)
    monkeypatch.setattr(archives.shutil, "copyfileobj", _no_room)
    with pytest.raises(OSError, match=r"no room to unpack .*set\.tar\.gz"):
        archives.unpack(archive, {})
    assert list((tmp_path / "unpacked").iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_unpacking_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    files = {f"set/{number}": os.urandom(200_000) for number in range(120)}
    archive = write_archive(tmp_path / "set.tar.gz", files)
    process = _process(archive)
    while process.is_alive() and not list((tmp_path / "unpacked").glob(".*.part/set/3")):
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = (tmp_path / "unpacked").iterdir()
    assert left.name.endswith(".part")
    folder = archives.unpack(archive, {})
    assert _content(folder) == files
    assert left.exists()  # it might belong to a process still at work ...
    os.utime(left, (0, 0))
    write_files(tmp_path, {"other.tar.gz": write_archive(tmp_path / "two.tar.gz", FILES).read_bytes()})
    archives.unpack(tmp_path / "other.tar.gz", {})
    assert not left.exists()  # ... but not after a day


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_at_once_give_one_whole_folder(tmp_path: Path) -> None:
    files = {f"set/{number}": os.urandom(50_000) for number in range(50)}
    archive = write_archive(tmp_path / "set.tar.gz", files)
    processes = [_process(archive) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert archives.unpack(archive, {}) == folder
    assert _content(folder) == files


def test_the_slower_of_two_takes_what_the_quicker_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path / "set.tar.gz", FILES)
    extract = archives._extract

    def slow(source: Path, folder: Path) -> None:
        extract(source, folder)
        monkeypatch.setattr(archives, "_extract", extract)
        archives.unpack(archive, {})  # the other process, between our last file and our rename

    monkeypatch.setattr(archives, "_extract", slow)
    folder = archives.unpack(archive, {})
    assert list((tmp_path / "unpacked").iterdir()) == [folder]
    assert _content(folder) == FILES


def test_places_are_the_root_and_then_matching_archives_only(tmp_path: Path) -> None:
    write_archive(tmp_path / "Some-Set2.tgz", {"x": b"x"})
    (tmp_path / "other.tar.gz").write_bytes(b"no archive, but not asked for")
    (tmp_path / "some-set.txt").write_bytes(b"no archive")
    (tmp_path / "some-set.tar").mkdir()
    found = archives.places(tmp_path, "some-set*", {})
    assert next(found) == tmp_path
    assert not (tmp_path / "unpacked").exists()  # only when the root was not enough
    assert [(place / "x").read_bytes() for place in found] == [b"x"]
    assert list(archives.places(None, "*", {})) == []
    assert list(archives.places(tmp_path / "absent", "*", {})) == [tmp_path / "absent"]


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def _no_room(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _stream(path: Path, *members: tarfile.TarInfo) -> Path:
    """A gzipped tar file whose members are zeros as long as their headers say, however long that is."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for header in members:
            file.write(header.tobuf(tarfile.GNU_FORMAT))
            for _ in range(0, header.size, 1 << 20):
                file.write(bytes(min(1 << 20, -(-header.size // 512) * 512)))
        file.write(bytes(1024))
    return path


def _refused(archive: Path, reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(data.CorruptDataError, match=rf"{archive.name}: .*{reason}.*unpack it yourself"):
            archives.unpack(archive, {})
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert list((archive.parent / "unpacked").iterdir()) == []


def test_an_archive_that_grows_too_much_is_refused(tmp_path: Path) -> None:
    archive = _stream(tmp_path / "set.tar.gz", member("set/small", 1000), member("set/large", 100 << 20))
    assert archive.stat().st_size < 1_000_000
    _refused(archive, "67,108,864 bytes")


def test_growth_is_counted_over_all_members(tmp_path: Path) -> None:
    _refused(_stream(tmp_path / "set.tar.gz", *(member(f"set/{n}", 9 << 20) for n in range(9))), "67,108,864 bytes")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_header_that_claims_much_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    _refused(_stream(tmp_path / "set.tar.gz", member("x", 60 << 20, type=kind), member("set/a", 10)), "header")


def test_a_sparse_file_counts_as_large_as_it_becomes(tmp_path: Path) -> None:
    header = bytearray(member("set/holes", 512, type=tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0" % 0 + b"%011o\0" % 512  # the only piece that is not a hole
    header[483:495] = b"%011o\0" % (8 << 30)  # the size with its holes
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(header)[0]  # type: ignore[attr-defined]
    (tmp_path / "set.tar").write_bytes(bytes(header) + bytes(512 + 1024))
    with tarfile.open(tmp_path / "set.tar") as source:
        assert source.getmembers()[0].size == 8 << 30
    _refused(tmp_path / "set.tar", "67,108,864 bytes")


def test_a_negative_size_does_not_turn_in_circles(tmp_path: Path) -> None:
    header = bytearray(member("set/a", 0).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512, base 256: the next header would be this one again
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(header)[0]  # type: ignore[attr-defined]
    (tmp_path / "set.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(data.CorruptDataError, match=r"set\.tar: "):
        archives.unpack(tmp_path / "set.tar", {})


def test_each_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path / "set.tar.gz", FILES)
    for name, reason in (
        ("MAX_MEMBERS", "more than 2 members"),
        ("MAX_UNPACKED_BYTES", "unpacks to more than 2 bytes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(archives, name, 2)
            _refused(archive, reason)
    write_archive(archive, {"a/" * (archives.MAX_DEPTH + 1) + "b": b"x"})
    _refused(archive, f"deeper than {archives.MAX_DEPTH} folders")


def test_the_published_archives_have_room() -> None:
    # The largest of each kind: bytes of the archive, bytes unpacked, members.
    for packed, unpacked, members in (
        (1_999_639_040, 1_950_000_000, 42_000),  # VOC 2012
        (1_557_161_267, 1_570_000_000, 13_500),  # Imagenette in full size
        (169_001_437, 178_000_000, 4),  # CIFAR-100
        (1_300_000, 5_500_000, 9),  # Multi30k
    ):
        assert unpacked * 4 < archives.unpacked_limit(packed)
        assert members * 4 < archives.MAX_MEMBERS


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz"])
def test_a_damaged_header_in_the_middle_does_not_pass_as_the_end(tmp_path: Path, suffix: str) -> None:
    whole = write_archive(tmp_path / "set.tar", {"set/1": b"x" * 512, "set/2": b"y" * 512})
    content = bytearray(whole.read_bytes())
    content[1024 + 3] ^= 1  # in the name of the second member
    pack = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.xz": lzma.compress}[suffix]
    whole.unlink()
    (tmp_path / f"set{suffix}").write_bytes(pack(bytes(content)))
    with tarfile.open(tmp_path / f"set{suffix}") as damaged:
        assert damaged.getnames() == ["set/1"]  # tarfile itself does not mind
    with pytest.raises(data.CorruptDataError, match=rf"set{suffix}: is cut short or damaged after 'set/1'; get"):
        archives.unpack(tmp_path / f"set{suffix}", {})


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz"])
def test_the_checksum_of_the_compression_is_verified(tmp_path: Path, suffix: str) -> None:
    archive = write_archive(tmp_path / f"set{suffix}", FILES)
    content = bytearray(archive.read_bytes())
    content[-6 if suffix == ".tar.gz" else -30] ^= 1
    archive.write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=rf"set{suffix}: cannot be read"):
        archives.unpack(archive, {})
