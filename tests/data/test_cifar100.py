import logging
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagp import data
from tests.data.making import write_archive, write_files


def _batch(seed: int, count: int = 6) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    return {
        b"filenames": [b"a.png"] * count,
        b"batch_label": b"a batch",
        b"fine_labels": rng.integers(0, 100, count).tolist(),
        b"coarse_labels": rng.integers(0, 20, count).tolist(),
        b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
    }


def _files(train: int = 0, test: int = 1) -> dict[str, bytes]:
    return {
        "cifar-100-python/meta": b"not even read",
        "cifar-100-python/train": pickle.dumps(_batch(train), protocol=4),
        "cifar-100-python/test": pickle.dumps(_batch(test, 4), protocol=4),
    }


def _check(dataset: data.DataSet, train: int = 0, test: int = 1) -> None:
    for split, expected in ((dataset.train, _batch(train)), (dataset.test, _batch(test, 4))):
        assert isinstance(split.images, torch.Tensor)
        assert np.array_equal(split.images.numpy(), expected[b"data"].reshape(-1, 3, 32, 32))
        assert split.labels.tolist() == expected[b"fine_labels"]
    assert (dataset.num_classes, dataset.channels, dataset.size) == (100, 3, 32)


@pytest.mark.parametrize("form", ["folder", "python.tar.gz", "python.tgz", "part.tar.xz"])
def test_folder_and_archives_give_the_same_and_a_part_is_told(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    if form == "folder":
        write_files(tmp_path, _files())
    else:
        write_archive(tmp_path / f"cifar-100-{form}", _files())
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    with caplog.at_level(logging.WARNING):
        _check(data.load("cifar100", tmp_path))
    assert caplog.text.count("is not the published one; it is read as a part") == 2
    after = {path for path in tmp_path.rglob("*") if tmp_path / "cache" not in (path, *path.parents)}
    assert after == before  # nothing is written into the root
    caplog.clear()
    _check(data.load("cifar100", tmp_path))  # from the cache
    assert caplog.text == ""


def test_two_parts_do_not_share_a_cache(tmp_path: Path) -> None:
    for root, seed in (("one", 0), ("two", 5)):
        write_files(tmp_path / root, _files(train=seed))
        _check(data.load("cifar100", tmp_path / root), train=seed)
    write_files(tmp_path / "two", _files(train=7))
    os.utime(tmp_path / "two" / "cifar-100-python" / "train", ns=(1, 1))
    _check(data.load("cifar100", tmp_path / "two"), train=7)


def test_the_complete_archive_comes_before_a_part(tmp_path: Path) -> None:
    write_archive(tmp_path / "cifar-100-a-part-of-it.tar.gz", _files(train=3))
    write_archive(tmp_path / "cifar-100-python.tar.gz", _files())
    _check(data.load("cifar100", tmp_path))


def test_a_malicious_pickle_is_not_run(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    content = pickle.dumps({b"data": Attack(), b"fine_labels": [1]}, protocol=4)
    write_files(tmp_path, _files() | {"cifar-100-python/train": content})
    with pytest.raises(data.CorruptDataError, match=r"train is not a CIFAR-100 batch.*mkdir"):
        data.load("cifar100", tmp_path)
    assert not (tmp_path / "owned").exists()
    pickle.loads(content)  # noqa: S301 the attack itself works: the test above could fail
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [100]},
        {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1]},
    ],
    ids=["cifar10", "label", "counts"],
)
def test_pickles_of_another_form_are_refused(tmp_path: Path, batch: object) -> None:
    write_files(tmp_path, _files() | {"cifar-100-python/test": pickle.dumps(batch)})
    with pytest.raises(data.CorruptDataError, match="test is not a CIFAR-100 batch"):
        data.load("cifar100", tmp_path)


def test_absent_files_are_named(tmp_path: Path) -> None:
    files = _files()
    del files["cifar-100-python/test"]
    write_archive(tmp_path / "cifar-100-python.tar.gz", files)
    with pytest.raises(data.CorruptDataError, match=r"cifar-100-python\.tar\.gz: lacks test"):
        data.load("cifar100", tmp_path)


def test_missing_data_states_layout_and_source(tmp_path: Path) -> None:
    with pytest.raises(data.MissingDataError) as caught:
        data.load("cifar100", tmp_path)
    for text in ("ROOT/cifar-100-python/ with train and test", "cifar-100-python.tar.gz", "ADAGP_DATA", "toronto.edu"):
        assert text in str(caught.value)


@pytest.mark.slow
def test_the_real_thing(caplog: pytest.LogCaptureFixture) -> None:
    if not os.environ.get("ADAGP_DATA"):
        pytest.skip("ADAGP_DATA names no folder")
    try:
        dataset = data.load("cifar100")
    except data.MissingDataError:
        pytest.skip("ADAGP_DATA holds no CIFAR-100")
    assert caplog.text == ""  # its checksum is known
    for split in (dataset.train, dataset.test):
        assert len(set(split.labels.bincount(minlength=100).tolist())) == 1
    assert isinstance(dataset.train.images, torch.Tensor)
    pixels = dataset.train.images.float() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=1e-2)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(dataset.std, abs=1e-2)
