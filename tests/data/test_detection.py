from pathlib import Path

import pytest
import torch
from PIL import Image

from adagp import coarse, data
from adagp.data import detection
from tests.data.making import picture


def _images(tmp_path: Path, count: int = 9) -> list[data.BoxedImage]:
    """Images of many shapes with one white rectangle, which is the box; its label is the image's number."""
    images = []
    for n in range(count):
        width, height = 30 + 7 * n, 80 - 6 * n
        box = (width // 3, height // 4, width - 4, height - 2)
        picture = Image.new("RGB", (width, height), (0, 0, 0))
        picture.paste((255, 255, 255), box)
        picture.save(tmp_path / f"{n}.png")
        labels = torch.tensor([n])
        images.append(data.BoxedImage(tmp_path / f"{n}.png", torch.tensor([box]).float(), labels, labels % 2 == 1))
    return images


def _batches(images: list[data.BoxedImage], **options: object) -> data.DetectionBatches:
    given = {"batch_size": 4, "size": 64, "seed": 1, "train": True} | options
    return data.DetectionBatches(images, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("train", "scale", "size"), [(True, 1.0, 64), (False, 1.0, 64), (True, 0.75, 48)])
def test_boxes_are_where_the_rectangles_are_also_in_mirror_images(
    tmp_path: Path, train: bool, scale: float, size: int
) -> None:
    images = _images(tmp_path)
    mirrored = []
    for batch in _batches(images, train=train).epoch(0, scale_of=lambda batch: scale):
        assert batch.images.shape == (len(batch.labels), 3, size, size)
        assert batch.images.dtype == torch.float32
        assert batch.owners.tolist() == list(range(len(batch.labels)))
        assert torch.equal(batch.difficult, batch.labels % 2 == 1)
        for image, box, label in zip(batch.images, batch.boxes, batch.labels.tolist(), strict=True):
            bright = (image.mean(0) > 0.75).nonzero()
            seen = [*bright.min(0).values.flip(0).tolist(), *(bright.max(0).values.flip(0) + 1).tolist()]
            assert seen == pytest.approx(box.tolist(), abs=1.01)
            x1, _, x2, _ = images[label].boxes[0].tolist()
            width = 30 + 7 * label
            mirrored.append((x1 + x2 > width) != (float(box[0] + box[2]) > size))
    assert set(mirrored) == ({True, False} if train else {False})


def test_a_coarse_batch_is_a_batch_of_the_data_set_at_that_size(tmp_path: Path) -> None:
    """The oracle: the same pictures and boxes made at half the size to begin with."""
    large, small = [], []
    for n in range(6):
        width, height = 200 + 40 * n, 360 - 20 * n
        (tmp_path / f"{n}.png").write_bytes(picture(width, height, n))
        with Image.open(tmp_path / f"{n}.png") as source:
            source.resize((width // 2, height // 2), Image.Resampling.BOX).save(tmp_path / f"{n}-half.png")
        boxes, labels = torch.tensor([[20.0, 30.0, width - 40, height - 10], [0, 0, 30, 12]]), torch.tensor([n, 1])
        large.append(data.BoxedImage(tmp_path / f"{n}.png", boxes, labels, labels == 1))
        small.append(data.BoxedImage(tmp_path / f"{n}-half.png", boxes / 2, labels, labels == 1))
    of_large = _batches(large, size=128, multiple=32, batch_size=2)
    coarse_batches = of_large.epoch(0, scale_of=lambda batch: 0.4)  # the nearest multiple of 32 is 64
    of_small = _batches(small, size=64, batch_size=2).epoch(0)
    for found, wanted, full in zip(coarse_batches, of_small, of_large.epoch(0), strict=True):
        torch.testing.assert_close(found.boxes, wanted.boxes)
        torch.testing.assert_close(found.boxes, coarse.boxes(full.boxes, (128, 128), (64, 64)), rtol=0, atol=1.01)
        assert all(
            torch.equal(getattr(found, part), getattr(wanted, part)) for part in ("labels", "difficult", "owners")
        )
        assert (found.images - wanted.images).abs().max() < 0.02
        assert (found.images - coarse.images(full.images, 0.5)).abs().median() < 0.02


def test_flipping_twice_changes_nothing() -> None:
    boxes = torch.rand(20, 4, dtype=torch.float64) * 50
    once = detection.flip_boxes(boxes, 64)
    torch.testing.assert_close(detection.flip_boxes(once, 64), boxes)
    torch.testing.assert_close(once[:, 2] - once[:, 0], boxes[:, 2] - boxes[:, 0])
    assert torch.equal(once[:, 1::2], boxes[:, 1::2])


def test_batches_resume_and_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    images = _images(tmp_path)
    whole = list(_batches(images, workers=3).epoch(2))
    assert len(whole) == len(_batches(images)) == 2
    assert _batches(images).examples_per_epoch == 8
    for start in range(3):
        resumed = list(_batches(images, workers=1).epoch(2, start))
        assert len(resumed) == 2 - start
        for a, b in zip(resumed, whole[start:], strict=True):
            assert all(torch.equal(getattr(a, part), getattr(b, part)) for part in vars(a))
    labels = torch.cat([batch.labels for batch in whole])
    assert not torch.equal(labels, torch.cat([batch.labels for batch in _batches(images).epoch(3)]))
    assert not torch.equal(labels, torch.cat([batch.labels for batch in _batches(images, seed=2).epoch(2)]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"limit": 0}, "limit"),
        ({"size": 0}, "size"),
        ({"workers": 0}, "workers"),
        ({"multiple": 0}, "multiple"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, options: dict[str, object], named: str) -> None:
    images = _images(tmp_path, 1)
    with pytest.raises(ValueError, match=named):
        _batches(images, **options)
    with pytest.raises(ValueError, match="images"):
        _batches([])
    with pytest.raises(ValueError, match="start"):
        _batches(images).epoch(0, 2)


def test_empty_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="own: the split train has no images"):
        data.Detection("own", ("dog",), train=(), test=())
