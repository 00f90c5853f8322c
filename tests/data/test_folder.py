import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adagp import coarse, data
from adagp.data import decoding, folder
from tests.data.making import picture, write_archive, write_files


def _images(counts: dict[str, int], form: str = "png") -> dict[str, bytes]:
    """`counts` images for each "split/class", all different."""
    return {
        f"{place}/{n}.{form}": picture(20 + n, 16, seed=10 * index + n, form="PNG" if form == "png" else "JPEG")
        for index, (place, count) in enumerate(counts.items())
        for n in range(count)
    }


COUNTS = {"train/cat": 6, "train/dog": 3, "val/cat": 2, "val/dog": 1}


def _paths(split: data.Split) -> list[Path]:
    assert isinstance(split.images, data.ImageFiles)
    return list(split.images.paths)


def test_your_own_folder(tmp_path: Path) -> None:
    write_files(tmp_path, _images(COUNTS) | {"train/cat/notes.txt": b"no image", "train/.hidden/x.png": b""})
    dataset = data.load("image-folder", tmp_path)
    assert (dataset.num_classes, dataset.channels, dataset.size) == (2, 3, 224)
    assert (len(dataset.train), len(dataset.test)) == (9, 3)
    names = ["cat", "dog"]
    for split in (dataset.train, dataset.test):
        assert [path.parent.name for path in _paths(split)] == [names[label] for label in split.labels.tolist()]
    assert set(dataset.train.labels[:3].tolist()) == {0, 1}  # a prefix sees every class
    assert len(set(_paths(dataset.train))) == 9
    assert all(path.parent.parent.name == "val" for path in _paths(dataset.test))


@pytest.mark.parametrize("form", ["folder", "tgz", "tar.gz", "tar.xz"])
def test_imagenette_from_folder_and_archives(tmp_path: Path, form: str) -> None:
    files = {f"imagenette2-96/{name}": content for name, content in _images(COUNTS, "JPEG").items()}
    if form == "folder":
        write_files(tmp_path, files)
    else:
        write_archive(tmp_path / f"imagenette2-96.{form}", files)
    dataset = data.load("imagenette", tmp_path).resized(16)
    batches = data.Batches(dataset.test, 3, seed=0, train=False, mean=dataset.mean, std=dataset.std)
    ((images, labels),) = batches.epoch(0)
    assert images.shape == (3, 3, 16, 16)
    assert labels.tolist() == dataset.test.labels.tolist()


def test_an_archive_of_a_known_name_with_other_content_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path / "imagenette2-160.tgz", {"imagenette2-160/train/a/1.JPEG": b""})
    with pytest.raises(data.CorruptDataError, match=r"imagenette2-160\.tgz: has md5 .*, expected e793b78c"):
        data.load("imagenette", tmp_path)


def test_imagenet_has_a_thousand_classes(tmp_path: Path) -> None:
    write_files(tmp_path / "imagenet", _images(COUNTS))
    with pytest.raises(data.CorruptDataError, match=r"has 2 classes, not 1000.*image-folder"):
        data.load("imagenet", tmp_path)
    places = (f"{split}/n{n:08}" for split in ("train", "val") for n in range(1000))
    write_files(tmp_path / "whole" / "imagenet", {f"{place}/0.JPEG": b"" for place in places})
    dataset = data.load("imagenet", tmp_path / "whole")
    assert (dataset.num_classes, len(dataset.train), len(dataset.test)) == (1000, 1000, 1000)


def test_batches_equal_decoding_one_image_at_a_time(tmp_path: Path) -> None:
    write_files(tmp_path, _images(COUNTS))
    dataset = data.load("image-folder", tmp_path).resized(12)
    batches = data.Batches(dataset.train, 4, seed=3, train=True, mean=dataset.mean, std=dataset.std)
    order = torch.cat([labels for _, labels in batches.epoch(0)])
    assert len(order) == 8
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (dataset.mean, dataset.std))
    expected = {}
    for path in _paths(dataset.train):
        with Image.open(path) as source:
            scaled = source.resize((round(source.width * 12 / 16), 12), Image.Resampling.BILINEAR)
        left = (scaled.width - 12 + 1) // 2
        pixels = torch.from_numpy(np.array(scaled.crop((left, 0, left + 12, 12)))).permute(2, 0, 1)
        expected[path] = (pixels.float() / 255 - mean) / std
    for images, labels in batches.epoch(0):
        for image, label in zip(images, labels.tolist(), strict=True):
            near = [path for path, other in expected.items() if torch.allclose(image, other, atol=1e-5)]
            assert [path.parent.name for path in near] == [["cat", "dog"][label]]


@pytest.mark.parametrize("workers", [1, 3])
def test_order_and_augmentation_are_those_of_images_in_memory(tmp_path: Path, workers: int) -> None:
    write_files(tmp_path, _images(COUNTS))
    dataset = data.load("image-folder", tmp_path).resized(12)
    files = data.ImageFiles(tuple(_paths(dataset.train)), 12, workers)
    (everything,) = files.read([torch.arange(9)])
    options = {"seed": 3, "train": True, "mean": dataset.mean, "std": dataset.std, "augment": dataset.augment}
    assert dataset.augment == data.Augment(padding=2, flip=True)  # 28 pixels of 224
    lazy = data.Batches(data.Split(files, dataset.train.labels), 2, **options, limit=7)  # type: ignore[arg-type]
    eager = data.Batches(data.Split(everything.contiguous(), dataset.train.labels), 2, **options, limit=7)  # type: ignore[arg-type]
    assert len(lazy) == 3
    for start in range(4):
        pairs = list(zip(lazy.epoch(1, start), eager.epoch(1, start), strict=True))
        assert len(pairs) == 3 - start
        assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


def test_coarse_batches_are_read_at_their_size(tmp_path: Path) -> None:
    write_files(tmp_path, _images(COUNTS))
    dataset = data.load("image-folder", tmp_path)
    options = {"seed": 3, "train": True, "mean": dataset.mean, "std": dataset.std}
    full, half = (data.Batches(dataset.resized(size).train, 2, **options) for size in (12, 6))  # type: ignore[arg-type]
    scales = [0.5, 1.0, 0.5, 0.5]
    whole = list(full.epoch(1, scale_of=scales.__getitem__))
    for (images, labels), large, small, scale in zip(whole, full.epoch(1), half.epoch(1), scales, strict=True):
        assert images.shape == (2, 3, round(12 * scale), round(12 * scale))
        assert torch.equal(images, (small if scale < 1 else large)[0])
        assert torch.equal(labels, large[1])
    for start in range(5):
        resumed = list(full.epoch(1, start, scales.__getitem__))
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(resumed, whole[start:], strict=True))


def test_coarse_batches_of_photographs_are_nearly_the_average_of_full_ones(tmp_path: Path) -> None:
    counts = {"train/cat": 8, "train/dog": 8, "val/cat": 1, "val/dog": 1}
    files = {
        f"{place}/{n}.jpg": picture(150 + 10 * n, 160 - 5 * n, seed=n, form="JPEG")
        for place, count in counts.items()
        for n in range(count)
    }
    write_files(tmp_path, files)
    dataset = data.load("image-folder", tmp_path).resized(64)
    augment = data.Augment(padding=8, flip=True)
    batches = data.Batches(dataset.train, 16, seed=3, train=True, mean=(0.5,) * 3, std=(0.25,) * 3, augment=augment)
    for scale in (0.5, 0.75):
        ((small, _),), ((full, _),) = batches.epoch(0, scale_of=lambda batch: scale), batches.epoch(0)  # noqa: B023
        # The pictures are smooth: half a pixel matters at their black borders alone.
        difference = (small - coarse.images(full, scale)).abs()
        assert difference.median() < 0.1
        assert (difference > 0.3).float().mean() < 0.1


def test_scales_of_files_are_asked_for_a_few_batches_ahead(tmp_path: Path) -> None:
    write_files(tmp_path, _images(COUNTS))
    dataset = data.load("image-folder", tmp_path).resized(12)
    asked: list[int] = []
    batches = data.Batches(dataset.train, 1, seed=0, train=True, mean=dataset.mean, std=dataset.std)
    for done, _ in enumerate(batches.epoch(0, scale_of=lambda batch: asked.append(batch) or 0.5), 1):  # type: ignore[func-returns-value]
        assert asked == list(range(min(done + decoding.BATCHES_AHEAD, 9)))


def test_a_damaged_image_is_named_when_its_batch_comes(tmp_path: Path) -> None:
    write_files(tmp_path, _images(COUNTS))
    (tmp_path / "val" / "dog" / "0.png").write_bytes(b"no image")
    dataset = data.load("image-folder", tmp_path)
    batches = data.Batches(dataset.test, 3, seed=0, train=False, mean=dataset.mean, std=dataset.std)
    with pytest.raises(data.CorruptDataError, match=r"val/dog/0\.png: cannot be decoded"):
        next(batches.epoch(0))


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({"train/cat": 1, "train/dog": 1, "val/cat": 1}, "differ in the classes dog"),
        ({"train/cat": 1, "val/cat": 1, "val/cow": 1}, "differ in the classes cow"),
    ],
)
def test_classes_must_agree(tmp_path: Path, counts: dict[str, int], named: str) -> None:
    write_files(tmp_path, _images(counts))
    with pytest.raises(data.CorruptDataError, match=named):
        data.load("image-folder", tmp_path)


def test_empty_splits_and_classes_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, _images(COUNTS))
    (tmp_path / "val" / "dog" / "0.png").unlink()
    with pytest.raises(data.CorruptDataError, match=r"val/dog: has no image"):
        data.load("image-folder", tmp_path)
    for split in ("train", "val"):
        (tmp_path / "other" / split).mkdir(parents=True)
    with pytest.raises(data.CorruptDataError, match=r"other/train: has no folders"):
        data.load("image-folder", tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("image-folder", ("ROOT/train/CLASS/*.jpg", "ROOT/val/CLASS")),
        ("imagenet", ("ROOT/imagenet/train/n01440764/*.JPEG", "https://image-net.org")),
        ("imagenette", ("ROOT/imagenette2-320.tgz", "imagenette2*/val", "https://github.com/fastai/imagenette")),
    ],
)
def test_missing_folders_state_layout_and_source(tmp_path: Path, name: str, texts: tuple[str, ...]) -> None:
    with pytest.raises(data.MissingDataError) as caught:
        data.load(name, tmp_path)
    for text in (*texts, str(tmp_path), "ADAGP_DATA", "--data-root"):
        assert text.removeprefix("ROOT/imagenette2-320") in str(caught.value)


@pytest.mark.parametrize(("size", "workers", "named"), [(0, 1, "size"), (8, 0, "workers")])
def test_impossible_image_files_are_refused(size: int, workers: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        data.ImageFiles((), size, workers)


@pytest.mark.slow
def test_the_real_thing() -> None:
    if not os.environ.get("ADAGP_DATA"):
        pytest.skip("ADAGP_DATA names no folder")
    try:
        dataset = data.load("imagenette")
    except data.MissingDataError:
        pytest.skip("ADAGP_DATA holds no Imagenette")
    assert dataset.num_classes == 10
    for split in (dataset.train, dataset.test):
        counts = split.labels.bincount()
        assert counts.max() < 1.5 * counts.min()
    small = dataset.resized(32)
    batches = data.Batches(small.test, 100, seed=0, train=False, mean=folder.MEAN, std=folder.STD)
    images = torch.cat([images for images, _ in batches.epoch(0)])
    assert len(images) == len(dataset.test)
    assert images.mean((0, 2, 3)).abs().max() < 0.3  # ImageNet's constants nearly fit its part
    assert (images.std((0, 2, 3)) - 1).abs().max() < 0.3
