"""CIFAR-10, 32x32 colour, from the authors' Python pickles (Krizhevsky, 2009).

A pickle can run any code. So each is unpickled only after its checksum matched the published one, and even then by an
unpickler that knows nothing but arrays. The archive is read in memory and never unpacked to disk: no member can land
anywhere.
"""

import hashlib
import io
import logging
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from adagp.data.batches import Augment
from adagp.data.files import CorruptDataError, MissingDataError, cache_folder, write_atomically
from adagp.data.registry import DataSet, Split, register

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
_MAX_BYTES = 64_000_000  # twice the largest member: no archive can fill the memory


@register("cifar10")
def load_cifar10(root: Path | None = None, *, checksums: Mapping[str, str] = MD5) -> DataSet:
    """50000 training and 10000 test images in ten classes, in the authors' order.

    The first call reads the source and keeps the converted tensors in the cache folder (seconds, 184 MB); later calls
    take those. A cache that cannot be written or read costs time, never the run.

    Args:
        root: folder that holds the pickles' folder or an archive of it.
        checksums: md5 of each pickle; only these files are read.

    Raises:
        MissingDataError: if neither folder nor archive is in `root`.
        CorruptDataError: if a file is absent, has another checksum or content, or the archive is not a plain one.
    """
    source = _find(root)
    key = hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()[:16]
    cached = cache_folder() / f"cifar10-{key}.pt"
    tensors = _read_cache(cached)
    if tensors is None:
        _log.info("reading CIFAR-10 from %s; this is done once", source)
        tensors = _read_source(source, checksums)
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(cached, lambda file: torch.save(tensors, file))
        except OSError as error:
            _log.warning("%s: not cached (%s); set ADAGP_CACHE to a folder with room to start faster", cached, error)
    return DataSet(
        name="cifar10",
        train=Split(tensors["train_images"], tensors["train_labels"]),
        test=Split(tensors["test_images"], tensors["test_labels"]),
        num_classes=10,
        channels=3,
        size=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        augment=Augment(padding=4, flip=True),
    )


def _find(root: Path | None) -> Path:
    if root is not None:
        for source in (root / FOLDER, *(root / name for name in ARCHIVES)):
            if source.exists():
                return source
    where = f"nothing of the kind is in {root}" if root else "no data root was named"
    raise MissingDataError(
        f"cifar10: {where}. Expected in the data root: the folder {FOLDER}/ with {', '.join(MD5)},"
        f" or one of {', '.join(ARCHIVES)}. Get cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"
        " and name its folder by --data-root or ADAGP_DATA."
    )


def _read_cache(path: Path) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        tensors: dict[str, Tensor] = torch.load(path, weights_only=True)
        for part in ("train", "test"):
            Split(tensors[f"{part}_images"], tensors[f"{part}_labels"])
    except Exception as error:  # whatever is wrong with a cache, the remedy is the same
        _log.warning("%s: unusable (%s: %s); made anew", path, type(error).__name__, error)
        return None
    return tensors


def _read_source(source: Path, checksums: Mapping[str, str]) -> dict[str, Tensor]:
    arrays: dict[str, tuple[Tensor, Tensor]] = {}
    for name, content in _files(source, checksums):
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != checksums[name]:
            raise CorruptDataError(
                f"{source}: {name} has md5 {found}, expected {checksums[name]}; it was not unpickled. Get the"
                " archive again from https://www.cs.toronto.edu/~kriz/cifar.html"
            )
        arrays[name] = _decode(f"{source}: {name}", content)
    if missing := sorted(set(checksums) - set(arrays)):
        raise CorruptDataError(f"{source}: lacks {', '.join(missing)}; get the archive again")
    train = [arrays[name] for name in sorted(checksums) if name != _TEST]
    return {
        "train_images": torch.cat([images for images, _ in train]),
        "train_labels": torch.cat([labels for _, labels in train]),
        "test_images": arrays[_TEST][0],
        "test_labels": arrays[_TEST][1],
    }


def _files(source: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """The wanted files' contents, from the folder or straight out of the archive."""
    if source.is_dir():
        for name in wanted:
            if (source / name).is_file():
                with (source / name).open("rb") as file:
                    yield name, file.read(_MAX_BYTES)
        return
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                path = _checked_path(source, member)
                if member.isfile() and path.parent == PurePosixPath(FOLDER) and path.name in wanted:
                    file_in = archive.extractfile(member)
                    assert file_in is not None  # holds for every regular file
                    yield path.name, file_in.read()
    except (CorruptDataError, PermissionError):
        raise
    except Exception as error:  # a damaged archive can raise nearly anything, by its compression
        raise CorruptDataError(f"{source}: cannot be read ({error}); get the archive again") from error


def _checked_path(source: Path, member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise CorruptDataError(f"{source}: member {member.name!r} points outside of the archive; do not use this file")
    if not (member.isfile() or member.isdir()):
        raise CorruptDataError(f"{source}: member {member.name!r} is a link or device; do not use this file")
    if member.size > _MAX_BYTES:
        raise CorruptDataError(f"{source}: member {member.name!r} of {member.size} bytes is too large for CIFAR-10")
    return path


class _ArrayUnpickler(pickle.Unpickler):
    """Knows numpy arrays and nothing else; every other global in the pickle is refused before it is even imported."""

    _reconstruct = np.zeros(0).__reduce__()[0]
    _known: Mapping[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}, which no CIFAR file needs")
        return self._known[module, name]


def _decode(where: str, content: bytes) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one pickle."""
    file: IO[bytes] = io.BytesIO(content)
    try:
        batch = _ArrayUnpickler(file, encoding="bytes").load()
        data, labels = batch[b"data"], torch.tensor(batch[b"labels"], dtype=torch.int64)
    except Exception as error:  # a pickle that is no pickle can raise nearly anything
        raise CorruptDataError(f"{where} is not a CIFAR-10 batch ({type(error).__name__}: {error})") from error
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), 3072):
        raise CorruptDataError(f"{where} is not a CIFAR-10 batch: its data is not uint8 of shape ({len(labels)}, 3072)")
    if labels.ndim != 1 or bool(((labels < 0) | (labels > 9)).any()):
        raise CorruptDataError(f"{where} is not a CIFAR-10 batch: its labels are not a list of 0..9")
    return torch.from_numpy(data.copy()).reshape(-1, 3, 32, 32), labels
