import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from adagp import coarse, data
from adagp.data import voc
from tests.data.making import picture, write_archive, write_files

WIDTH, HEIGHT = 40, 20


def _object(name: str, box: tuple[object, ...], difficult: int | None = 0) -> str:
    x1, y1, x2, y2 = box
    flag = "" if difficult is None else f"<difficult>{difficult}</difficult>"
    corners = f"<xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
    # VOC 2012 also boxes the parts of people, which are no objects.
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>" if name == "person" else ""
    return f"<object><name>{name}</name>{flag}<bndbox>{corners}</bndbox>{part}</object>"


def _annotation(*objects: str) -> bytes:
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    return f"<annotation>{size}{''.join(objects)}</annotation>".encode()


ANNOTATIONS = {
    "a": _annotation(_object("dog", (1, 1, 40, 20)), _object("person", (11, 6, 20, 15), 1)),
    "b": _annotation(_object("tvmonitor", ("5.5", "2", "10.5", "9"), None)),
    "c": _annotation(),
    "d": _annotation(_object("aeroplane", (0, 3, 41, 9))),
}


def _kit(year: int = 2007, splits: dict[str, str] | None = None) -> dict[str, bytes]:
    lists = {"train": "a\nb\n", "val": "c\nd\n"} if splits is None else splits
    top = f"VOCdevkit/VOC{year}"
    files = {f"{top}/ImageSets/Main/{split}.txt": names.encode() for split, names in lists.items()}
    for seed, name in enumerate("".join(lists.values()).split()):
        files[f"{top}/JPEGImages/{name}.jpg"] = picture(WIDTH, HEIGHT, seed, "JPEG")
        files[f"{top}/Annotations/{name}.xml"] = ANNOTATIONS[name]
    return files


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "tar.xz"])
@pytest.mark.parametrize("year", [2007, 2012])
def test_voc_from_folder_and_archives(tmp_path: Path, form: str, year: int) -> None:
    if form == "folder":
        write_files(tmp_path, _kit(year))
    else:
        write_archive(tmp_path / f"VOCpart_{year}.{form}", _kit(year))
    found = data.load_detection(f"voc{year}", tmp_path)
    assert found.classes == voc.CLASSES
    assert len(found.classes) == len(set(found.classes)) == 20
    assert [image.path.name for image in found.train + found.test] == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    a, b, c, d = found.train + found.test
    # From pixels counted from 1, the last one inside, to edges counted from 0.
    assert a.boxes.tolist() == [[0, 0, 40, 20], [10, 5, 20, 15]]
    assert [found.classes[label] for label in a.labels] == ["dog", "person"]
    assert a.difficult.tolist() == [False, True]
    assert b.boxes.tolist() == [[4.5, 1, 10.5, 9]]
    assert (b.labels.tolist(), b.difficult.tolist()) == ([19], [False])
    assert (c.boxes.shape, c.labels.shape, c.difficult.shape) == ((0, 4), (0,), (0,))
    assert d.boxes.tolist() == [[0, 2, 40, 9]]  # clipped


def test_splits_may_lie_in_two_archives_and_be_chosen(tmp_path: Path) -> None:
    write_archive(tmp_path / "VOCmine_2007.tar", _kit(splits={"trainval": "a\n"}))
    write_archive(tmp_path / "VOCtest_2007.tar", _kit(splits={"test": "d\n"}))
    (tmp_path / "VOCtrainval_2012.tar").write_bytes(b"of another year, so not even opened")
    found = voc.load_voc(tmp_path, year=2007, train="trainval", test="test")
    assert [image.path.name for image in (*found.train, *found.test)] == ["a.jpg", "d.jpg"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<annotation>", "no element"),
        (b"", "no element"),
        (b"<annotation/>", "size/width is not a number"),
        (_annotation(_object("unicorn", (1, 1, 2, 2))), "'unicorn' is not one of the 20 classes"),
        (_annotation(_object("dog", (1, 1, "x", 2))), "bndbox/xmax is not a number"),
        (_annotation(_object("dog", (9, 1, 5, 2))), "is empty or outside"),
        (_annotation(_object("dog", (50, 1, 60, 2))), "is empty or outside"),
        (_annotation(_object("dog", (1, 1, "nan", 2))), "bndbox/xmax is not a number"),
        (_annotation(_object("dog", (1, 1, "9" * 400, 2))), "bndbox/xmax is not a number"),
        (_annotation(_object("dog", (1, 1, "x" * 90_000, 2))), "bndbox/xmax is not a number: 'x{80}'"),
        (_annotation().replace(b"<width>40", b"<width>1e300"), "size/width is not a number of pixels"),
        (_annotation().replace(b"<height>20", b"<height>0"), "size/height is not a number of pixels"),
        (b'<?xml version="1.0" encoding="nonsense"?>' + _annotation(), "encoding"),
        (b'<?xml version="1.0" encoding="idna"?>' + _annotation(), "idna"),
        ("<annotation>Männer</annotation>".encode("latin-1"), "not well-formed"),
        (_annotation("<object/>"), "bndbox/xmin is not a number"),
        (b"<a>" * 30_000 + b"</a>" * 30_000, "deeper than"),
        (b"<a>" * 30_000, "deeper than"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]>' + _annotation(), "document type"),
        ('<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a []><annotation/>'.encode("utf-16"), "document type"),
    ],
    ids=[
        *("cut", "empty", "no-size", "class", "no-number", "reversed", "outside", "nan", "huge", "long", "width"),
        *("height", "encoding", "codec", "latin", "no-box", "deep", "deep-cut", "entity", "utf-16"),
    ],
)
def test_damaged_annotations_are_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    write_files(tmp_path, _kit() | {"VOCdevkit/VOC2007/Annotations/d.xml": content})
    with pytest.raises(data.CorruptDataError, match=rf"Annotations/d\.xml: is not an annotation.*{reason}"):
        data.load_detection("voc2007", tmp_path)


def test_an_annotation_larger_than_any_is_refused(tmp_path: Path) -> None:
    content = _annotation(f"<!--{'x' * voc.MAX_ANNOTATION_BYTES}-->")
    write_files(tmp_path, _kit() | {"VOCdevkit/VOC2007/Annotations/d.xml": content})
    with pytest.raises(data.CorruptDataError, match=r"Annotations/d\.xml: has more than 1,000,000 bytes"):
        data.load_detection("voc2007", tmp_path)


def test_entities_that_multiply_are_never_expanded(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 9))
    content = f'<!DOCTYPE a [<!ENTITY e0 "{"x" * 1000}">{entities}]><annotation>&e8;</annotation>'.encode()
    write_files(tmp_path, _kit() | {"VOCdevkit/VOC2007/Annotations/d.xml": content})
    tracemalloc.start()
    try:
        with pytest.raises(data.CorruptDataError, match=r"d\.xml.*document type"):
            data.load_detection("voc2007", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("absent", ["JPEGImages/b.jpg", "Annotations/b.xml"])
def test_absent_files_are_named(tmp_path: Path, absent: str) -> None:
    write_files(tmp_path, _kit())
    (tmp_path / "VOCdevkit" / "VOC2007" / absent).unlink()
    with pytest.raises(data.CorruptDataError, match=rf"{absent}: is absent"):
        data.load_detection("voc2007", tmp_path)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (b"", "names no image"),
        (b"../../a\n", "not an image's name"),
        (b"c\nd\xe4\n", r"is not UTF-8 \(byte 0xe4 at 3\)"),
        ("c\nd\n".encode("utf-16"), "is not UTF-8"),
        (b"c\n" + b"d" * 5000 + b"\n", "'d{80}'.*not an image's name"),
        (b"c\n\0\n", "not an image's name"),
        (b"c\nd\nc\n", "names 'c' twice"),
        (b"c\n" * 600_000, "has more than 1,000,000 bytes"),
    ],
    ids=["empty", "path", "latin", "utf-16", "long", "null", "twice", "large"],
)
def test_lists_that_are_none_are_refused(tmp_path: Path, names: bytes, reason: str) -> None:
    write_files(tmp_path, _kit() | {"VOCdevkit/VOC2007/ImageSets/Main/val.txt": names})
    with pytest.raises(data.CorruptDataError, match=rf"val\.txt: .*{reason}.*get the archive again"):
        data.load_detection("voc2007", tmp_path)


def test_missing_voc_states_layout_and_source(tmp_path: Path) -> None:
    write_files(tmp_path, _kit(2007))
    with pytest.raises(data.MissingDataError) as caught:
        data.load_detection("voc2012", tmp_path)
    for text in ("VOCdevkit/VOC2012/ImageSets/Main/train.txt", "JPEGImages", "Annotations", "ADAGP_DATA", "voc2012/"):
        assert text in str(caught.value)


def test_owners_tell_the_image_of_each_box(tmp_path: Path) -> None:
    write_files(tmp_path, _kit())
    found = data.load_detection("voc2007", tmp_path)
    (batch,) = data.DetectionBatches([*found.train, *found.test], 4, size=40, seed=1, train=False).epoch(0)
    assert batch.owners.tolist() == [0, 0, 1, 3]
    assert batch.boxes[batch.owners == 0].tolist() == [[0, 10, 40, 30], [10, 15, 20, 25]]
    assert torch.equal(batch.to(torch.device("cpu")).boxes, batch.boxes)
    (limited,) = data.DetectionBatches(list(found.train), 4, size=64, seed=1, train=False, limit=1).epoch(0)
    assert limited.labels.tolist() == found.train[0].labels.tolist()


@pytest.fixture
def real() -> data.Detection:
    if not os.environ.get("ADAGP_DATA"):
        pytest.skip("ADAGP_DATA names no folder")
    try:
        return data.load_detection("voc2007")
    except data.MissingDataError:
        pytest.skip("ADAGP_DATA holds no VOC 2007")


@pytest.mark.slow
def test_coarse_batches_of_the_real_thing(real: data.Detection) -> None:
    """At half of 416, the nearest multiple of 32 is 192."""
    full = data.DetectionBatches(real.train, 16, size=416, seed=0, train=True, limit=64, multiple=32)
    small = data.DetectionBatches(real.train, 16, size=192, seed=0, train=True, limit=64)
    batches = zip(full.epoch(0, scale_of=lambda batch: 0.5), small.epoch(0), full.epoch(0), strict=True)
    for found, wanted, large in batches:
        assert all(torch.equal(getattr(found, part), getattr(wanted, part)) for part in vars(found))
        assert (found.boxes / 192 - large.boxes / 416).abs().max() < 1 / 192
        assert (found.images - coarse.images(large.images, 0.5, 32)).abs().mean() < 0.03


@pytest.mark.slow
def test_the_real_thing(real: data.Detection) -> None:
    assert not {image.path for image in real.train} & {image.path for image in real.test}
    labels = torch.cat([image.labels for image in real.train])
    assert set(labels.tolist()) == set(range(20))
    seen = 0
    for batch in data.DetectionBatches(real.test, 16, size=416, seed=0, train=False).epoch(0):
        seen += len(batch.labels)
        assert batch.boxes.min() >= 0
        assert batch.boxes.max() <= 416
        assert (batch.boxes[:, 2:] > batch.boxes[:, :2]).all()
        assert 0.2 < batch.images.mean() < 0.8
    assert seen == sum(len(image.labels) for image in real.test)
