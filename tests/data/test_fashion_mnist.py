import gzip
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch

from adagp import data
from adagp.data import fashion_mnist
from tests.data.making import check_constants

IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _idx(path: Path, values: torch.Tensor) -> None:
    header = b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.numpy().tobytes()))


def _write_fashion(folder: Path) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True)
    parts = {
        name: torch.randint(0, 256 if "images" in name else 10, (n, 28, 28) if "images" in name else (n,)).byte()
        for name, n in zip(IDX, (12, 12, 5, 5), strict=True)
    }
    for name, values in parts.items():
        _idx(folder / f"{name}-ubyte.gz", values)
    return parts


@pytest.mark.parametrize("below", [".", "fashion-mnist"])
def test_fashion_mnist_from_idx_files(tmp_path: Path, below: str) -> None:
    parts = _write_fashion(tmp_path / "root" / below)
    dataset = data.load("fashion-mnist", tmp_path / "root")
    assert torch.equal(dataset.train.images[:, 0], parts[IDX[0]])
    assert torch.equal(dataset.train.labels, parts[IDX[1]].long())
    assert torch.equal(dataset.test.images[:, 0], parts[IDX[2]])
    assert torch.equal(dataset.test.labels, parts[IDX[3]].long())


def test_fashion_mnist_from_unpacked_idx_files(tmp_path: Path) -> None:
    parts = _write_fashion(tmp_path / "root")
    for packed in (tmp_path / "root").glob("*-labels-*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    dataset = data.load("fashion-mnist", tmp_path / "root")
    assert torch.equal(dataset.train.labels, parts[IDX[1]].long())
    assert torch.equal(dataset.test.images[:, 0], parts[IDX[2]])
    (tmp_path / "root" / "t10k-labels-idx1-ubyte").write_bytes(b"no idx")
    with pytest.raises(data.CorruptDataError, match=r"t10k-labels-idx1-ubyte: not an idx"):
        data.load("fashion-mnist", tmp_path / "root")


def test_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_fashion(tmp_path / "root")
    monkeypatch.setenv("ADAGP_DATA", str(tmp_path / "root"))
    assert len(data.load("fashion-mnist").train) == 12


def test_fashion_mnist_from_the_system_folder(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "system")
    assert len(fashion_mnist.load_fashion_mnist(None, system_folder=tmp_path / "system").test) == 5


@pytest.mark.slow
@pytest.mark.skipif(not fashion_mnist.SYSTEM_FOLDER.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_of_debian() -> None:
    dataset = fashion_mnist.load_fashion_mnist(None)
    assert dataset.train.labels.bincount().tolist() == [6000] * 10
    assert dataset.test.labels.bincount().tolist() == [1000] * 10
    check_constants(dataset)


def test_missing_fashion_mnist_states_layout_and_source(tmp_path: Path) -> None:
    with pytest.raises(data.MissingDataError) as caught:
        fashion_mnist.load_fashion_mnist(tmp_path, system_folder=tmp_path / "none")
    for text in ("train-images-idx3-ubyte.gz", str(tmp_path / "fashion-mnist"), "dataset-fashion-mnist", "ADAGP_DATA"):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip at all",
        gzip.compress(b""),
        gzip.compress(b"\0\0\x08\x03\0\0"),
        gzip.compress(b"\0\0\x09\x01\0\0\0\x01\x05"),
        gzip.compress(b"\0\0\x08\x01\0\0\0\x02\x05"),
        gzip.compress(b"\0\0\x08\x01\0\0\0\x01\x05\x05"),
        gzip.compress(b"\0\0\x08\x00\x05"),
        gzip.compress(b"\0\0\x08\x01" + bytes(1000))[:-12],
    ],
    ids=["no-gzip", "empty", "short-header", "other-type", "too-short", "too-long", "rank-0", "cut"],
)
def test_corrupt_idx_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    _write_fashion(tmp_path / "root")
    (tmp_path / "root" / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=r"train-images-idx3-ubyte\.gz"):
        data.load("fashion-mnist", tmp_path / "root")


@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
def test_sizes_whose_product_overflows_are_refused(tmp_path: Path, kind: str) -> None:
    _write_fashion(tmp_path / "root")
    header = b"\0\0\x08\x03" + struct.pack(">3I", 1 << 31, 1 << 31, 1 << 2)  # the product is 2 ** 64, or 0
    (tmp_path / "root" / f"t10k-{kind}-ubyte.gz").write_bytes(gzip.compress(header))
    with pytest.raises(data.CorruptDataError, match=rf"t10k-{kind}-ubyte\.gz: .*get the file again"):
        data.load("fashion-mnist", tmp_path / "root")


def test_an_idx_file_of_many_dimensions_is_refused(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "root")
    header = b"\0\0\x08\xff" + struct.pack(">255I", *[(1 << 32) - 1] * 254, 0)
    (tmp_path / "root" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header))
    with pytest.raises(data.CorruptDataError, match=r"t10k-images-idx3-ubyte\.gz: .*get the file again"):
        data.load("fashion-mnist", tmp_path / "root")


def test_labels_beyond_the_classes_are_refused_by_name(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "root")
    _idx(tmp_path / "root" / "t10k-labels-idx1-ubyte.gz", torch.tensor([1, 2, 10, 3, 255], dtype=torch.uint8))
    with pytest.raises(data.CorruptDataError, match=r"t10k-labels-idx1-ubyte\.gz: has the label 255.*0\.\.9.*again"):
        data.load("fashion-mnist", tmp_path / "root")


def test_an_empty_idx_split_is_refused_by_name(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "root")
    _idx(tmp_path / "root" / "train-images-idx3-ubyte.gz", torch.zeros(0, 28, 28, dtype=torch.uint8))
    _idx(tmp_path / "root" / "train-labels-idx1-ubyte.gz", torch.zeros(0, dtype=torch.uint8))
    with pytest.raises(data.CorruptDataError, match=r"train-labels-idx1-ubyte\.gz: has no labels.*again"):
        data.load("fashion-mnist", tmp_path / "root")


def test_a_gzip_bomb_takes_little_memory(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "root")
    with gzip.open(tmp_path / "root" / "train-labels-idx1-ubyte.gz", "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(data.CorruptDataError, match=r"train-labels.*\.gz: has more than 100,000,000 bytes"):
            data.load("fashion-mnist", tmp_path / "root")
        assert tracemalloc.get_traced_memory()[1] < 250_000_000
    finally:
        tracemalloc.stop()


def test_images_that_do_not_fit_the_labels_are_refused(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "root")
    _idx(tmp_path / "root" / "t10k-labels-idx1-ubyte.gz", torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(data.CorruptDataError, match="do not fit"):
        data.load("fashion-mnist", tmp_path / "root")
