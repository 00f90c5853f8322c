import io
import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from adagp import data
from adagp.data import decoding
from adagp.data.decoding import Decoded, Placement, decode, decode_batches
from tests.data.making import picture, write_files


def _files(folder: Path, count: int) -> list[Path]:
    write_files(folder, {f"{n}.png": picture(10 + n, 25 - n, seed=n) for n in range(count)})
    return [folder / f"{n}.png" for n in range(count)]


def _pixels(batches: Iterator[list[Decoded]]) -> list[torch.Tensor]:
    return [torch.stack([image.pixels for image in batch]) for batch in batches]


@pytest.mark.parametrize("fit", ["crop", "letterbox"])
def test_the_same_whatever_the_number_of_workers(tmp_path: Path, fit: decoding.Fit) -> None:
    files = _files(tmp_path, 12)
    batches = [files[:5], files[5:6], files[6:]]
    one, three = (_pixels(decode_batches(batches, 16, fit, workers)) for workers in (1, 3))
    assert [len(batch) for batch in one] == [5, 1, 6]
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
    here = torch.stack([decode(path, 16, fit).pixels for path in files])
    assert torch.equal(torch.cat(one), here)


def test_crop_takes_the_middle_of_the_scaled_image(tmp_path: Path) -> None:
    write_files(tmp_path, {"wide.png": picture(64, 32), "tall.png": picture(32, 64), "exact.png": picture(32, 32)})
    decoded = next(decode_batches([[tmp_path / f"{name}.png" for name in ("wide", "tall", "exact")]], 16, "crop"))
    for image, box in zip(decoded, [(16, 0, 48, 32), (0, 16, 32, 48), (0, 0, 32, 32)], strict=True):
        name = {(64, 32): "wide", (32, 64): "tall", (32, 32): "exact"}[image.placement.width, image.placement.height]
        with Image.open(tmp_path / f"{name}.png") as source:
            expected = source.crop(box).resize((16, 16), Image.Resampling.BILINEAR)
        # Scaling before and after cutting differ at the edges alone.
        difference = (image.pixels.int() - torch.from_numpy(np.array(expected)).int()).abs()
        assert difference[1:-1, 1:-1].max() <= 1


@pytest.mark.parametrize(("form", "mode"), [("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "P"), ("PNG", "RGBA")])
def test_any_mode_becomes_rgb(tmp_path: Path, form: str, mode: str) -> None:
    (tmp_path / "image").write_bytes(picture(20, 20, form=form, mode=mode))
    ((image,),) = decode_batches([[tmp_path / "image"]], 10, "crop")
    assert image.pixels.shape == (10, 10, 3)
    if mode == "L":
        assert torch.equal(image.pixels[..., 0], image.pixels[..., 2])


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_and_looks_the_same(tmp_path: Path) -> None:
    (tmp_path / "large.jpg").write_bytes(picture(400, 300, form="JPEG"))
    ((image,),) = decode_batches([[tmp_path / "large.jpg"]], 32, "crop")
    assert (image.placement.width, image.placement.height) == (400, 300)
    with Image.open(tmp_path / "large.jpg") as source:
        expected = np.array(source.resize((43, 32), Image.Resampling.BOX).crop((5, 0, 37, 32)))
    assert (image.pixels.int() - torch.from_numpy(expected).int()).abs().float().mean() < 4


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "absent", "folder"])
def test_a_file_that_cannot_be_decoded_is_named_and_the_others_are_not_lost(tmp_path: Path, damage: str) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(picture(20, 20))
    if damage == "folder":
        bad.mkdir()
    elif damage != "absent":
        bad.write_bytes({"cut": good.read_bytes()[:-60], "noise": os.urandom(500), "empty": b""}[damage])
    batches = decode_batches([[good], [good, bad]], 8, "crop")
    next(batches)
    with pytest.raises(data.CorruptDataError, match=r"bad\.png: cannot be decoded"):
        next(batches)
    assert len(next(decode_batches([[good]], 8, "crop"))) == 1


def test_an_image_too_large_to_be_one_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    Image.new("1", (60_000, 2)).save(header, "PNG")
    content = bytearray(header.getvalue())
    content[20:24] = (60_000).to_bytes(4, "big")  # its header now claims 3.6 thousand million pixels
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    (tmp_path / "bomb.png").write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=r"bomb\.png.*DecompressionBomb"):
        next(decode_batches([[tmp_path / "bomb.png"]], 8, "crop"))


def test_a_narrow_image_is_not_scaled_to_gigabytes(tmp_path: Path) -> None:
    Image.new("L", (60_000, 1)).save(tmp_path / "narrow.png")
    with pytest.raises(data.CorruptDataError, match=r"narrow\.png.*60000 x 1 pixels.*too narrow"):
        next(decode_batches([[tmp_path / "narrow.png"]], 224, "crop"))
    ((image,),) = decode_batches([[tmp_path / "narrow.png"]], 224, "letterbox")
    assert image.placement.scaled_height == 1


def test_formats_that_no_photograph_has_are_refused_whatever_the_name(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "image.eps", "EPS")  # Pillow would have Ghostscript run it
    (tmp_path / "image.eps").rename(tmp_path / "image.jpg")
    with pytest.raises(data.CorruptDataError, match=r"image\.jpg: cannot be decoded \(UnidentifiedImageError"):
        next(decode_batches([[tmp_path / "image.jpg"]], 8, "crop"))
    for form in ("BMP", "GIF", "WEBP"):  # what one meets under a wrong name
        Image.new("RGB", (8, 8)).save(tmp_path / "image.jpg", form)
        assert len(next(decode_batches([[tmp_path / "image.jpg"]], 8, "crop"))) == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(data.CorruptDataError, match=r"pipe\.jpg: cannot be decoded .*not a regular file"):
        next(decode_batches([[tmp_path / "pipe.jpg"]], 8, "crop"))


@pytest.mark.parametrize("pillows_own", [None, 1 << 30])
def test_the_limit_on_pixels_is_ours_whatever_pillow_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pillows_own: int | None
) -> None:
    (path,) = _files(tmp_path, 1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillows_own)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 249)  # the image has 10 x 25
    with pytest.raises(data.CorruptDataError, match=r"0\.png.*DecompressionBombError: 10 x 25 pixels"):
        next(decode_batches([[path]], 8, "crop"))


def test_memory_that_runs_out_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError

    (path,) = _files(tmp_path, 1)
    monkeypatch.setattr(Image.Image, "convert", full)
    with pytest.raises(MemoryError):
        next(decode_batches([[path]], 8, "crop"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_decodes_too(tmp_path: Path) -> None:
    files = _files(tmp_path, 3)
    next(decode_batches([files], 8, "crop", 2))  # the parent's threads run; the child inherits none of them
    child = multiprocessing.get_context("fork").Process(target=_decode_all, args=(files,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _decode_all(files: list[Path]) -> None:
    assert len(next(decode_batches([files], 8, "crop", 2))) == len(files)


def test_relative_paths_follow_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, size in (("one", 10), ("two", 20)):
        write_files(tmp_path / folder, {"a.png": picture(size, size)})
        monkeypatch.chdir(tmp_path / folder)
        ((image,),) = decode_batches([[Path("a.png")]], 8, "crop", 1)
        assert image.placement.width == size


def test_only_a_few_batches_are_decoded_ahead_and_the_rest_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = _files(tmp_path, 1)
    asked = []

    def batches() -> Iterator[list[Path]]:
        for batch in range(100):
            asked.append(batch)
            yield [path] * 4

    decoded = decode_batches(batches(), 8, "crop", 2)
    next(decoded)
    next(decoded)
    assert asked == list(range(2 + decoding.BATCHES_AHEAD))
    time.sleep(0.2)
    assert len(asked) == 2 + decoding.BATCHES_AHEAD
    decoded.close()  # type: ignore[attr-defined]
    assert len(asked) == 2 + decoding.BATCHES_AHEAD


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="workers: must be at least 1"):
        next(decode_batches([[]], 8, "crop", 0))


BOXES = st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=5)


@settings(deadline=None, max_examples=100)
@example(width=775, height=1, size=413, shares=[(0.0, 0.0, 1.0, 0.0)])
@given(width=st.integers(1, 900), height=st.integers(1, 900), size=st.integers(1, 600), shares=BOXES)
def test_boxes_move_with_the_pixels_and_back(
    width: int, height: int, size: int, shares: list[tuple[float, float, float, float]]
) -> None:
    edge = max(width, height)
    scaled = max(1, round(width * size / edge)), max(1, round(height * size / edge))
    place = Placement(width, height, *scaled, (size - scaled[0]) // 2, (size - scaled[1]) // 2)
    boxes = torch.tensor(shares, dtype=torch.float64) * torch.tensor([width, height] * 2)
    moved = place.to_square(boxes)
    torch.testing.assert_close(place.to_image(moved), boxes, rtol=1e-9, atol=1e-6)
    assert moved.min() >= 0
    assert moved.max() <= size
    corners = place.to_square(torch.tensor([[0, 0, width, height]], dtype=torch.float64))[0].tolist()
    assert corners == pytest.approx([place.left, place.top, place.left + scaled[0], place.top + scaled[1]])


@pytest.mark.parametrize(("width", "height"), [(60, 30), (30, 60), (45, 45), (200, 7), (3, 90)])
def test_a_letterboxed_rectangle_is_where_its_box_says(tmp_path: Path, width: int, height: int) -> None:
    box = (width // 4, height // 4, width // 4 + max(1, width // 2), height // 4 + max(1, height // 2))
    image = Image.new("RGB", (width, height), (0, 0, 0))
    image.paste((255, 255, 255), box)
    image.save(tmp_path / "image.png")
    ((decoded,),) = decode_batches([[tmp_path / "image.png"]], 64, "letterbox")
    place, pixels = decoded.placement, decoded.pixels.float().mean(2)
    assert (place.width, place.height) == (width, height)
    inside = torch.zeros(64, 64, dtype=torch.bool)
    inside[place.top : place.top + place.scaled_height, place.left : place.left + place.scaled_width] = True
    assert (pixels[~inside] == 128).all()
    bright = (inside & (pixels > 127)).nonzero()
    (x1, y1, x2, y2), tolerance = place.to_square(torch.tensor([box], dtype=torch.float32))[0].tolist(), 1.01
    assert bright[:, 0].min() == pytest.approx(y1, abs=tolerance)
    assert bright[:, 0].max() + 1 == pytest.approx(y2, abs=tolerance)
    assert bright[:, 1].min() == pytest.approx(x1, abs=tolerance)
    assert bright[:, 1].max() + 1 == pytest.approx(x2, abs=tolerance)
