"""CIFAR-10: 32x32 colour images in ten classes. Each pickle is opened only if its checksum is the published one."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from adagp.data import cifar
from adagp.data.classification import DataSet
from adagp.data.files import CorruptDataError, missing
from adagp.data.registry import register

_log = logging.getLogger(__name__)

FOLDER = "cifar-10-batches-py"
ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-python.tar.xz")
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_TEST = "test_batch"
_MAX_BYTES = 64_000_000  # twice the largest file


@register("cifar10", summary="photographs of ten classes")
def load_cifar10(root: Path | None = None, *, checksums: Mapping[str, str] = MD5) -> DataSet:
    """50000 training and 10000 test images in ten classes, in the authors' order.

    The first call takes seconds and keeps the converted tensors in the cache folder (184 MB); later calls read those.

    Args:
        root: folder that holds the pickles' folder or an archive of it.
        checksums: md5 of each pickle; only these files are read.

    Raises:
        MissingDataError: if neither folder nor archive is in `root`.
        CorruptDataError: if a file is absent, has another checksum or wrong content, or the archive is unsafe.
    """
    source = _find(root)
    tensors = cifar.cached("cifar10", repr(sorted(checksums.items())), 10, lambda: _read(source, checksums))
    return cifar.data_set("cifar10", tensors, 10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def _find(root: Path | None) -> Path:
    if root is not None:
        for source in (root / FOLDER, *(root / name for name in ARCHIVES)):
            if source.is_dir() or source.is_file():
                return source
    layout = (f"ROOT/{ARCHIVES[0]}, or {ARCHIVES[1]}, or the same unpacked", f"ROOT/{FOLDER}/ with {', '.join(MD5)}")
    raise missing("cifar10", root, layout, f"Get {ARCHIVES[0]} from {cifar.PAGE}.")


def _read(source: Path, checksums: Mapping[str, str]) -> cifar.Splits:
    _log.info("reading CIFAR-10 from %s; this is done once", source)
    arrays: dict[str, tuple[Tensor, Tensor]] = {}
    for name, content in cifar.read_files(source, FOLDER, checksums, _MAX_BYTES):
        if (found := cifar.md5(content)) != checksums[name]:
            raise CorruptDataError(
                f"{source}: {name} has md5 {found}, expected {checksums[name]}; it was not unpickled. Get the"
                f" archive again from {cifar.PAGE}"
            )
        arrays[name] = cifar.decode(f"{source}: {name}", content, b"labels", 10)
    if lacking := sorted(set(checksums) - set(arrays)):
        raise CorruptDataError(f"{source}: lacks {', '.join(lacking)}; get the archive again from {cifar.PAGE}")
    train = [arrays[name] for name in sorted(checksums) if name != _TEST]
    return {
        "train_images": torch.cat([images for images, _ in train]),
        "train_labels": torch.cat([labels for _, labels in train]),
        "test_images": arrays[_TEST][0],
        "test_labels": arrays[_TEST][1],
    }
