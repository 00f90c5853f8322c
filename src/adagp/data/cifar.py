"""CIFAR-10 and CIFAR-100 from the authors' Python pickles, 32x32 colour (Krizhevsky, 2009).

A pickle can run any code, so `pickles` reads them, which knows only plain values and arrays. The archive is read in
memory and never unpacked. The cache folder keeps plain tensors.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from torch import Tensor

from adagp.data import pickles
from adagp.data.archives import CHUNK, open_members
from adagp.data.batches import Augment
from adagp.data.classification import DataSet, Split, in_classes
from adagp.data.files import CorruptDataError
from adagp.data.reading import read_limited
from adagp.files import cache_folder, write_atomically

_log = logging.getLogger(__name__)

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
Splits = dict[str, Tensor]  # train_images, train_labels, test_images, test_labels
Channels = tuple[float, float, float]


def data_set(name: str, tensors: Splits, classes: int, mean: Channels, std: Channels) -> DataSet:
    """The data set of both splits, with the augmentation usual for CIFAR."""
    return DataSet(
        name=name,
        train=Split(tensors["train_images"], tensors["train_labels"]),
        test=Split(tensors["test_images"], tensors["test_labels"]),
        num_classes=classes,
        channels=3,
        size=32,
        mean=mean,
        std=std,
        augment=Augment(padding=4, flip=True),
    )


def read_files(source: Path, folder: str, wanted: Collection[str], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Read the wanted files from the folder, or directly from the archive.

    Raises:
        CorruptDataError: if the archive is damaged or unsafe, or a file is larger than `max_bytes`.
    """
    if source.is_dir():
        for name in wanted:
            if (source / name).is_file():
                yield name, read_limited(source / name, max_bytes, f"get the archive again from {PAGE}")
        return
    with open_members(source) as members:
        for path, content in members:
            if content is not None and path.parent == PurePosixPath(folder) and path.name in wanted:
                yield path.name, _read_member(source, path, content, max_bytes)


def _read_member(source: Path, path: PurePosixPath, content: IO[bytes], max_bytes: int) -> bytes:
    found = bytearray()
    while piece := content.read(CHUNK):
        found += piece
        if len(found) > max_bytes:
            raise CorruptDataError(
                f"{source}: member '{path}' has more than {max_bytes:,} bytes, too large for CIFAR; get the archive"
                f" again from {PAGE}"
            )
    return bytes(found)


def md5(content: bytes) -> str:
    """The checksum the authors publish."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cached(name: str, key: str, classes: int, read: Callable[[], Splits]) -> Splits:
    """The result of `read`, kept in the cache folder. An unusable cache costs time, never the run."""
    path = cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.pt"
    tensors = _read_cache(path, classes)
    if tensors is None:
        tensors = read()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: torch.save(tensors, file))
        except OSError as error:
            _log.warning("%s: not cached (%s); set ADAGP_CACHE to a folder with room to start faster", path, error)
    return tensors


def _read_cache(path: Path, classes: int) -> Splits | None:
    if not path.is_file():
        return None
    try:
        tensors: Splits = torch.load(path, weights_only=True)
        for part in ("train", "test"):
            images, labels = tensors[f"{part}_images"], tensors[f"{part}_labels"]
            Split(images, labels)
            if images.shape[1:] != (3, 32, 32) or not in_classes(labels, classes):
                raise ValueError(f"{part}: not CIFAR-{classes}")
    except Exception as error:  # whatever is wrong with the cache, the remedy is the same
        _log.warning("%s: unusable (%s: %s); it is made again", path, type(error).__name__, error)
        return None
    return tensors


def decode(where: str, content: bytes, labels_key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one pickle.

    Raises:
        CorruptDataError: if it is not a pickle of plain values and arrays, or not a batch of CIFAR.
    """
    what = f"{where} is not a CIFAR-{classes} batch"
    remedy = f"get the archive again from {PAGE}"
    try:
        batch = pickles.loads(content)
    except pickles.PickleError as error:
        raise CorruptDataError(f"{what} (the pickle cannot be used: {error}); {remedy}") from error
    if not isinstance(batch, dict) or not {b"data", labels_key} <= set(batch):
        raise CorruptDataError(f"{what} (it has no data or no {labels_key.decode()}); {remedy}")
    data, labels = batch[b"data"], batch[labels_key]
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list | tuple) or not all(type(label) is int and 0 <= label < classes for label in labels):
        raise CorruptDataError(f"{what}: its labels are not a list of 0..{classes - 1}; {remedy}")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), 3072):
        raise CorruptDataError(f"{what}: its data is not uint8 of shape ({len(labels)}, 3072); {remedy}")
    if not labels:
        raise CorruptDataError(f"{what}: it has no images; {remedy}")
    return torch.from_numpy(data.copy()).reshape(-1, 3, 32, 32), torch.tensor(labels)
