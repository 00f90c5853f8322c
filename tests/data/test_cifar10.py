import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagp import data
from adagp.data import cifar, cifar10

NAMES = ("data_batch_1", "data_batch_2", "test_batch")
FOLDER = "cifar-10-batches-py"


class _Attack:
    """Creates a file when it is unpickled by an ordinary unpickler."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.target),)


def _batch(seed: int) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    return {
        b"batch_label": b"a batch",
        b"labels": rng.integers(0, 10, 6).tolist(),
        b"data": rng.integers(0, 256, (6, 3072), dtype=np.uint8),
        b"filenames": [b"a.png"] * 6,
    }


@pytest.fixture
def pickles() -> dict[str, bytes]:
    return {name: pickle.dumps(_batch(seed), protocol=4) for seed, name in enumerate(NAMES)}


def _md5(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}


def _write_folder(root: Path, files: Mapping[str, bytes]) -> None:
    (root / FOLDER).mkdir(parents=True)
    for name, content in files.items():
        (root / FOLDER / name).write_bytes(content)


def _member(name: str, size: int = 0, **fields: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    for key, value in fields.items():
        setattr(member, key, value)
    return member


def _write_archive(
    root: Path, files: Mapping[str, bytes], *, form: str = "gz", extra: tarfile.TarInfo | None = None
) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"cifar-10-python.tar.{form}"
    with tarfile.open(path, f"w:{form}") as archive:  # type: ignore[call-overload]
        if extra is not None:
            archive.addfile(extra, io.BytesIO(bytes(extra.size)))
        archive.addfile(_member(FOLDER, type=tarfile.DIRTYPE, mode=0o755))
        for name, content in files.items():
            archive.addfile(_member(f"{FOLDER}/{name}", len(content)), io.BytesIO(content))
    return path


def _check(dataset: data.DataSet) -> None:
    expected = [_batch(seed) for seed in range(3)]
    images = np.concatenate([batch[b"data"] for batch in expected[:2]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(dataset.train.images.numpy(), images)
    assert dataset.train.labels.tolist() == expected[0][b"labels"] + expected[1][b"labels"]
    assert np.array_equal(dataset.test.images.numpy(), expected[2][b"data"].reshape(-1, 3, 32, 32))
    assert dataset.test.labels.tolist() == expected[2][b"labels"]


@pytest.mark.parametrize("form", ["folder", "gz", "xz"])
def test_folder_and_archives_give_the_same(tmp_path: Path, pickles: dict[str, bytes], form: str) -> None:
    root = tmp_path / "root"
    if form == "folder":
        _write_folder(root, pickles)
    else:
        _write_archive(root, pickles, form=form)
    before = sorted(root.rglob("*"))
    _check(cifar10.load_cifar10(root, checksums=_md5(pickles)))
    assert sorted(root.rglob("*")) == before  # nothing is written into the root: it may be read-only


def test_second_load_comes_from_the_cache(tmp_path: Path, pickles: dict[str, bytes], cache: Path) -> None:
    archive = _write_archive(tmp_path / "root", pickles)
    cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))
    assert len(list(cache.iterdir())) == 1
    archive.write_bytes(b"gone bad since")
    _check(cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles)))


def test_cache_of_other_checksums_is_not_taken(tmp_path: Path, pickles: dict[str, bytes]) -> None:
    _write_folder(tmp_path / "root", pickles)
    cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))
    with pytest.raises(data.CorruptDataError, match="md5"):
        cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles) | {"test_batch": "0" * 32})


@pytest.mark.parametrize("damage", ["cut", "attack", "labels", "other"])
def test_damaged_cache_is_made_anew_and_never_executed(
    tmp_path: Path, pickles: dict[str, bytes], cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    _write_folder(tmp_path / "root", pickles)
    cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))
    (cached,) = cache.iterdir()
    if damage == "cut":
        cached.write_bytes(cached.read_bytes()[:-100])
    elif damage == "attack":
        torch.save(_Attack(tmp_path / "owned"), cached)
    elif damage == "labels":
        torch.save(torch.load(cached) | {"test_labels": torch.full((6,), 10)}, cached)
    else:
        torch.save({"train_images": torch.zeros(3)}, cached)
    _check(cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles)))
    assert "made again" in caplog.text
    assert not (tmp_path / "owned").exists()
    caplog.clear()
    _check(cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles)))
    assert caplog.text == ""


def test_unwritable_cache_costs_a_warning_only(
    tmp_path: Path, pickles: dict[str, bytes], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write_folder(tmp_path / "root", pickles)
    cache.write_bytes(b"a file where the folder should be")
    _check(cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles)))
    assert "ADAGP_CACHE" in caplog.text


@pytest.mark.parametrize("form", ["folder", "gz"])
def test_wrong_checksum_is_refused_before_unpickling(
    tmp_path: Path, pickles: dict[str, bytes], form: str, cache: Path
) -> None:
    checksums = _md5(pickles)
    pickles["data_batch_2"] = pickle.dumps(_Attack(tmp_path / "owned"), protocol=4)
    (_write_folder if form == "folder" else _write_archive)(tmp_path / "root", pickles)
    with pytest.raises(data.CorruptDataError, match=r"data_batch_2 has md5 .* not unpickled"):
        cifar10.load_cifar10(tmp_path / "root", checksums=checksums)
    assert not (tmp_path / "owned").exists()
    assert not cache.exists()


def test_malicious_pickle_is_refused_even_where_its_checksum_matches(tmp_path: Path, pickles: dict[str, bytes]) -> None:
    attack = _Attack(tmp_path / "owned")
    pickles["data_batch_1"] = pickle.dumps({b"data": attack, b"labels": [1]}, protocol=4)
    _write_folder(tmp_path / "root", pickles)
    with pytest.raises(data.CorruptDataError, match=r"data_batch_1.*mkdir"):
        cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))
    assert not (tmp_path / "owned").exists()
    pickle.loads(pickles["data_batch_1"])  # noqa: S301 the attack itself works: the test above could fail
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        {b"labels": [1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.float32), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": "x"},
    ],
    ids=["list", "no-data", "counts", "dtype", "label", "labels"],
)
def test_pickles_of_another_form_are_refused(tmp_path: Path, pickles: dict[str, bytes], batch: object) -> None:
    pickles["test_batch"] = pickle.dumps(batch, protocol=4)
    _write_folder(tmp_path / "root", pickles)
    with pytest.raises(data.CorruptDataError, match="test_batch is not a CIFAR-10 batch"):
        cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))


def test_python2_pickles_are_read() -> None:
    """The authors' files: protocol 2, byte strings, numpy.core, a Fortran-free uint8 array."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01bt\x52"
        b"(I1\n(I1\nI3072\ntcnumpy\ndtype\n(U\x02u1I0\nI1\nt\x52(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\nT"
        + (3072).to_bytes(4, "little")
        + bytes(range(256)) * 12
        + b"tb"
    )
    content = b"\x80\x02}(U\x04data" + array + b"U\x06labels](I7\neu."
    images, labels = cifar.decode("here", content, b"labels", 10)
    assert images.flatten().tolist() == list(range(256)) * 12
    assert labels.tolist() == [7]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (_member("../escaped", 3), "outside"),
        (_member(f"{FOLDER}/../../escaped", 3), "outside"),
        (_member("/tmp/escaped", 3), "outside"),
        (_member(f"{FOLDER}/link", type=tarfile.SYMTYPE, linkname="/etc/hostname"), "link"),
        (_member(f"{FOLDER}/data_batch_1", type=tarfile.LNKTYPE, linkname="../escaped"), "link"),
        (_member(f"{FOLDER}/fifo", type=tarfile.FIFOTYPE), "device"),
        (_member(f"{FOLDER}/bomb", 70_000_000), "unpacks to more than"),
        (_member(f"{FOLDER}/data_batch_1", 65_000_000), "too large for CIFAR"),
    ],
    ids=["parent", "inner-parent", "absolute", "symlink", "hardlink", "fifo", "bomb", "large"],
)
def test_archives_that_are_not_plain_are_refused(
    tmp_path: Path, pickles: dict[str, bytes], extra: tarfile.TarInfo, reason: str
) -> None:
    _write_archive(tmp_path / "root", pickles, extra=extra)
    with pytest.raises(data.CorruptDataError, match=reason):
        cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))
    assert not list(tmp_path.rglob("*escaped*"))


@pytest.mark.parametrize("form", ["gz", "xz"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_damaged_archives_are_refused_by_name(
    tmp_path: Path, pickles: dict[str, bytes], form: str, damage: str
) -> None:
    archive = _write_archive(tmp_path / "root", pickles, form=form)
    content = bytearray(archive.read_bytes())
    if damage == "noise":
        content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    elif damage == "cut":
        del content[len(content) // 2 :]
    else:
        content.clear()
    archive.write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=r"cifar-10-python\.tar"):
        cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))


@pytest.mark.parametrize("form", ["folder", "gz"])
def test_absent_batches_are_named(tmp_path: Path, pickles: dict[str, bytes], form: str) -> None:
    checksums = _md5(pickles)
    del pickles["data_batch_2"]
    (_write_folder if form == "folder" else _write_archive)(tmp_path / "root", pickles)
    with pytest.raises(data.CorruptDataError, match="lacks data_batch_2"):
        cifar10.load_cifar10(tmp_path / "root", checksums=checksums)


def test_a_file_too_large_to_be_one_is_not_cut(tmp_path: Path, pickles: dict[str, bytes]) -> None:
    _write_folder(tmp_path / "root", pickles)
    with (tmp_path / "root" / FOLDER / "data_batch_1").open("r+b") as file:
        file.truncate(64_000_001)
    with pytest.raises(data.CorruptDataError, match=r"data_batch_1: has more than 64,000,000 bytes"):
        cifar10.load_cifar10(tmp_path / "root", checksums=_md5(pickles))


def test_a_pipe_in_place_of_the_archive_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(data.MissingDataError):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize("named", [True, False])
def test_missing_data_states_layout_and_source(tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAGP_DATA", raising=False)
    with pytest.raises(data.MissingDataError) as caught:
        data.load("cifar10", tmp_path if named else None)
    for text in ("cifar-10-batches-py/", "data_batch_1", "cifar-10-python.tar.gz", "ADAGP_DATA", "cs.toronto.edu"):
        assert text in str(caught.value)
    assert (str(tmp_path) in str(caught.value)) == named


@pytest.mark.slow
def test_the_real_thing() -> None:
    root = os.environ.get("ADAGP_DATA")
    if not root:
        pytest.skip("ADAGP_DATA names no folder")
    try:
        dataset = data.load("cifar10")
    except data.MissingDataError:
        pytest.skip("ADAGP_DATA holds no CIFAR-10")
    assert dataset.train.labels.bincount().tolist() == [5000] * 10
    assert dataset.test.labels.bincount().tolist() == [1000] * 10
    pixels = dataset.train.images.float() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=1e-3)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(dataset.std, abs=1e-3)
    assert dataset.augment == data.Augment(padding=4, flip=True)
