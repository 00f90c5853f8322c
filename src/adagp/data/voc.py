"""Pascal VOC, objects of twenty classes in photographs, in the layout of its development kit (Everingham et al.)."""

import math
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from adagp.data.archives import places
from adagp.data.detection import BoxedImage, Detection
from adagp.data.files import CorruptDataError, missing
from adagp.data.reading import decode_text, read_limited, short
from adagp.data.registry import register

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
CHECKSUMS = {
    "VOCtrainval_06-Nov-2007.tar": "c52e279531787c972589f7e41ab4ae64",
    "VOCtrainval_11-May-2012.tar": "6cd6e144f989b92b3379bac3b3de84fd",
    "voc2007-subset.tar.gz": "4d0226fb175c9a6c1be16a2841ac6ba61afdf13de1c93132835db8604aedea33",
}
MAX_LIST_BYTES = 1_000_000  # five times the list of all images of VOC 2012
MAX_ANNOTATION_BYTES = 1_000_000  # forty times the largest in VOC 2012
_MAX_DEPTH = 32  # nested elements; VOC has four
_MAX_NAME = 200  # characters; file systems allow 255, suffix included
_MAX_SIDE = 65_535  # pixels; the limit of JPEG
_REMEDY = "get the archive again"


@register("voc2007", task="detection", summary="Pascal VOC 2007, objects of 20 classes")
def load_voc2007(root: Path | None = None) -> Detection:
    """The splits train and val of 2007; see `load_voc`."""
    return load_voc(root, year=2007)


@register("voc2012", task="detection", summary="Pascal VOC 2012, objects of 20 classes")
def load_voc2012(root: Path | None = None) -> Detection:
    """The splits train and val of 2012; see `load_voc`."""
    return load_voc(root, year=2012)


def load_voc(root: Path | None = None, *, year: int, train: str = "train", test: str = "val") -> Detection:
    """Load two splits of a year; the protocol of 2007 uses `trainval` and `test`.

    Images stay in their files. A split holds the images that its list names, so a part of the data set works too.

    Args:
        root: folder with `VOCdevkit` or an archive of it; each split may be in another archive.
        year: of the challenge.
        train: list in `ImageSets/Main` of the training split.
        test: list of the test split.

    Raises:
        MissingDataError: if a list is neither in `root` nor in an archive there.
        CorruptDataError: if an archive is damaged, an image is absent, or an annotation is absent or invalid.
    """
    return Detection(
        name=f"voc{year}",
        classes=CLASSES,
        train=_read_split(*_find(root, year, train), train),
        test=_read_split(*_find(root, year, test), test),
    )


def _find(root: Path | None, year: int, split: str) -> tuple[Path, Path]:
    """The folder of the year with this split, and the split's list."""
    for place in places(root, f"voc*{year}*", CHECKSUMS):
        folder = place / "VOCdevkit" / f"VOC{year}"
        if (found := folder / "ImageSets" / "Main" / f"{split}.txt").is_file():
            return folder, found
    layout = (
        f"ROOT/VOCtrainval_*{year}.tar, or any VOC*{year}*.tar, .tar.gz, .tgz or .tar.xz, or the same unpacked",
        f"ROOT/VOCdevkit/VOC{year}/ImageSets/Main/{split}.txt, with the image's name in each line",
        f"ROOT/VOCdevkit/VOC{year}/JPEGImages/NAME.jpg",
        f"ROOT/VOCdevkit/VOC{year}/Annotations/NAME.xml",
    )
    source = f"Get the archive from http://host.robots.ox.ac.uk/pascal/VOC/voc{year}/."
    raise missing(f"voc{year}", root, layout, source)


def _read_split(folder: Path, listed: Path, split: str) -> tuple[BoxedImage, ...]:
    text = decode_text(listed, read_limited(listed, MAX_LIST_BYTES, _REMEDY), _REMEDY)
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        raise CorruptDataError(f"{listed}: names no image; {_REMEDY}")
    if (odd := next((name for name in names if not _is_name(name)), None)) is not None:
        raise CorruptDataError(f"{listed}: {short(odd)} is not an image's name in the split {split}; {_REMEDY}")
    (first, times), *_ = Counter(names).most_common(1)
    if times > 1:  # a test would count its objects twice
        raise CorruptDataError(f"{listed}: names {first!r} twice; {_REMEDY}")
    return tuple(_read_image(folder, name) for name in names)


def _is_name(text: str) -> bool:
    return Path(text).name == text and "\0" not in text and len(text) <= _MAX_NAME


class _Annotation(ElementTree.TreeBuilder):
    """Builds the tree of a plain document: entities and deep nesting could exhaust the memory."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise ValueError("it has a document type, which no annotation needs")

    def start(self, tag: Any, attributes: Any, /) -> ElementTree.Element:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"it is deeper than {_MAX_DEPTH} elements")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def _read_image(folder: Path, name: str) -> BoxedImage:
    image, annotation = folder / "JPEGImages" / f"{name}.jpg", folder / "Annotations" / f"{name}.xml"
    for path in (image, annotation):
        if not path.is_file():
            raise CorruptDataError(f"{path}: is absent, though a list names it; {_REMEDY}")
    content = read_limited(annotation, MAX_ANNOTATION_BYTES, _REMEDY)
    try:
        tree = ElementTree.fromstring(content, ElementTree.XMLParser(target=_Annotation()))
        width, height = (_side(tree, side) for side in ("width", "height"))
        objects = tree.findall("object")
        boxes = [_box(item, width, height) for item in objects]
        labels = [_label(item) for item in objects]
        difficult = [item.findtext("difficult", "0").strip() == "1" for item in objects]
    # LookupError: the document names an unknown encoding.
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise CorruptDataError(f"{annotation}: is not an annotation of Pascal VOC ({error}); get it again") from error
    return BoxedImage(
        path=image,
        boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        labels=torch.tensor(labels, dtype=torch.int64),
        difficult=torch.tensor(difficult, dtype=torch.bool),
    )


def _side(tree: ElementTree.Element, side: str) -> float:
    pixels = _number(tree, f"size/{side}")
    if not 1 <= pixels <= _MAX_SIDE:
        raise ValueError(f"size/{side} is not a number of pixels from 1 to {_MAX_SIDE}: {pixels:g}")
    return pixels


def _label(item: ElementTree.Element) -> int:
    name = item.findtext("name", "").strip()
    if name not in CLASSES:
        raise ValueError(f"{short(name)} is not one of the {len(CLASSES)} classes")
    return CLASSES.index(name)


def _box(item: ElementTree.Element, width: float, height: float) -> tuple[float, float, float, float]:
    """Edges from 0, clipped to the image. The files count pixels from 1 and state the last pixel inside."""
    x1, y1, x2, y2 = (_number(item, f"bndbox/{name}") for name in ("xmin", "ymin", "xmax", "ymax"))
    box = max(0.0, x1 - 1), max(0.0, y1 - 1), min(width, x2), min(height, y2)
    if not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"the box {x1:g} {y1:g} {x2:g} {y2:g} is empty or outside of {width:g} x {height:g} pixels")
    return box


def _number(element: ElementTree.Element, path: str) -> float:
    text = element.findtext(path, "")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{path} is not a number: {short(text)}")
    return number
