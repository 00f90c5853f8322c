"""Fashion-MNIST, 28x28 grey, from its idx files, gzipped or not (Xiao et al., 2017)."""

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from adagp.data.classification import DataSet, Split, in_classes
from adagp.data.files import CorruptDataError, MissingDataError
from adagp.data.reading import read_limited
from adagp.data.registry import register

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # where Debian's dataset-fashion-mnist puts the files
_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_CLASSES = 10
_MAX_RANK = 3  # images, rows, columns
_MAX_BYTES = 100_000_000  # twice the largest file, unpacked
_REMEDY = "get the file again"


@register("fashion-mnist", summary="clothes of ten classes")
def load_fashion_mnist(root: Path | None = None, *, system_folder: Path = SYSTEM_FOLDER) -> DataSet:
    """60000 training and 10000 test images of clothes in ten classes.

    Raises:
        MissingDataError: if no folder has all four files.
        CorruptDataError: if a file is damaged or not an idx file, has no images, or has labels outside of 0..9.
    """
    paths = _find(root, system_folder)
    train_images, train_labels, test_images, test_labels = (read_idx(path) for path in paths)
    return DataSet(
        name="fashion-mnist",
        train=_split(paths[0], paths[1], train_images, train_labels),
        test=_split(paths[2], paths[3], test_images, test_labels),
        num_classes=_CLASSES,
        channels=1,
        size=28,
        mean=(0.286,),
        std=(0.353,),
    )


def read_idx(path: Path) -> Tensor:
    """Read an idx file of unsigned bytes, gzipped if its name ends in .gz.

    The format is two zeros, type 8, rank, the sizes as big-endian 32 bit, the data.

    Raises:
        CorruptDataError: if the header or the length does not match the format.
    """
    content = read_limited(path, _MAX_BYTES, _REMEDY)
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 0 < content[3] <= _MAX_RANK:
        raise CorruptDataError(f"{path}: not an idx file of unsigned bytes in one to three dimensions; {_REMEDY}")
    rank = content[3]
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", content[4:start]) if len(content) >= start else ()
    expected = start + math.prod(shape)
    if not shape or len(content) != expected:
        raise CorruptDataError(f"{path}: {len(content)} bytes, its header says {expected}; {_REMEDY}")
    if expected == start:
        return torch.zeros((0,) * rank, dtype=torch.uint8)  # the other sizes may be too large for a tensor
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].reshape(shape)


def _split(path: Path, labels_path: Path, images: Tensor, labels: Tensor) -> Split:
    if labels.numel() == 0:
        raise CorruptDataError(f"{labels_path}: has no labels, so the split would be empty; {_REMEDY}")
    if images.shape != (len(labels), 28, 28) or labels.ndim != 1:
        raise CorruptDataError(
            f"{path}: images of shape {tuple(images.shape)} do not fit labels of shape {tuple(labels.shape)}; {_REMEDY}"
        )
    if not in_classes(labels, _CLASSES):
        raise CorruptDataError(
            f"{labels_path}: has the label {int(labels.max())}, but there are only 0..{_CLASSES - 1}; {_REMEDY}"
        )
    return Split(images.unsqueeze(1), labels.long())


def _find(root: Path | None, system_folder: Path) -> list[Path]:
    folders = [root, root / "fashion-mnist"] if root else []
    folders.append(system_folder)
    for folder in folders:
        found = [_either(folder / name) for name in _FILES]
        if all(path.is_file() for path in found):
            return found
    raise MissingDataError(
        "fashion-mnist: the files\n  "
        + "\n  ".join(f"{name}.gz" for name in _FILES)
        + "\n(or the same unpacked, without .gz) are not together in any of: "
        + ", ".join(str(folder) for folder in folders)
        + ".\nOn Debian: apt-get install dataset-fashion-mnist. Elsewhere: take them from"
        + " https://github.com/zalandoresearch/fashion-mnist (data/fashion) and name their folder"
        + " by --data-root or ADAGP_DATA."
    )


def _either(path: Path) -> Path:
    """The gzipped file if it exists, else the unpacked one."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() else path
