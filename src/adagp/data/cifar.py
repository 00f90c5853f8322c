"""What CIFAR-10 and CIFAR-100 share: the authors' Python pickles, 32x32 colour (Krizhevsky, 2009).

A pickle can run any code. So each is read by an unpickler that knows nothing but arrays. The archive is read in memory
and never unpacked to disk: no member can land anywhere. What is kept, in the cache folder, are plain tensors.
"""

import hashlib
import io
import logging
import pickle
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adagp.data.archives import member_path
from adagp.data.classification import Split
from adagp.data.files import CorruptDataError, cache_folder, write_atomically

_log = logging.getLogger(__name__)

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
Splits = dict[str, Tensor]  # train_images, train_labels, test_images, test_labels


def read_files(source: Path, folder: str, wanted: Collection[str], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """The wanted files' contents, from the folder or straight out of the archive.

    Raises:
        CorruptDataError: if the archive is damaged or not a plain one, or a file is larger than `max_bytes`.
    """
    if source.is_dir():
        for name in wanted:
            if (source / name).is_file():
                with (source / name).open("rb") as file:
                    yield name, file.read(max_bytes)
        return
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                path = member_path(source, member)
                if member.size > max_bytes:
                    raise CorruptDataError(
                        f"{source}: member {member.name!r} of {member.size} bytes is too large for CIFAR"
                    )
                if member.isfile() and path.parent == PurePosixPath(folder) and path.name in wanted:
                    file_in = archive.extractfile(member)
                    assert file_in is not None  # holds for every regular file
                    yield path.name, file_in.read()
    except (CorruptDataError, PermissionError):
        raise
    except Exception as error:  # a damaged archive can raise nearly anything, by its compression
        raise CorruptDataError(f"{source}: cannot be read ({error}); get the archive again from {PAGE}") from error


def md5(content: bytes) -> str:
    """The checksum the authors publish."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cached(name: str, key: str, read: Callable[[], Splits]) -> Splits:
    """What `read` gives, kept in the cache folder; a cache that cannot be written or read costs time, never the run."""
    path = cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.pt"
    tensors = _read_cache(path)
    if tensors is None:
        tensors = read()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: torch.save(tensors, file))
        except OSError as error:
            _log.warning("%s: not cached (%s); set ADAGP_CACHE to a folder with room to start faster", path, error)
    return tensors


def _read_cache(path: Path) -> Splits | None:
    if not path.is_file():
        return None
    try:
        tensors: Splits = torch.load(path, weights_only=True)
        for part in ("train", "test"):
            Split(tensors[f"{part}_images"], tensors[f"{part}_labels"])
    except Exception as error:  # whatever is wrong with a cache, the remedy is the same
        _log.warning("%s: unusable (%s: %s); made anew", path, type(error).__name__, error)
        return None
    return tensors


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


def decode(where: str, content: bytes, labels_key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one pickle.

    Raises:
        CorruptDataError: if it is no pickle, asks for anything but arrays, or holds something else.
    """
    what = f"is not a CIFAR-{classes} batch"
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        data, labels = batch[b"data"], torch.tensor(batch[labels_key], dtype=torch.int64)
    except Exception as error:  # a pickle that is no pickle can raise nearly anything
        raise CorruptDataError(f"{where} {what} ({type(error).__name__}: {error})") from error
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), 3072):
        raise CorruptDataError(f"{where} {what}: its data is not uint8 of shape ({len(labels)}, 3072)")
    if labels.ndim != 1 or bool(((labels < 0) | (labels >= classes)).any()):
        raise CorruptDataError(f"{where} {what}: its labels are not a list of 0..{classes - 1}")
    return torch.from_numpy(data.copy()).reshape(-1, 3, 32, 32), labels
