"""CIFAR-100: 32x32 colour images in a hundred classes, complete or a part in the same layout."""

import logging
from pathlib import Path

from adagp.data import cifar
from adagp.data.archives import SUFFIXES
from adagp.data.classification import DataSet
from adagp.data.files import CorruptDataError, missing
from adagp.data.registry import register

_log = logging.getLogger(__name__)

FOLDER = "cifar-100-python"
FILES = ("train", "test")
# The authors' files, and those of a published part: the first 100 training and 20 test images of each class.
MD5 = {
    "train": ("16019d7e3df5f24257cddd939b257f8d", "ad3b6fb090a2189b651aef327eeb827f"),
    "test": ("f0ef6b0ae62326f3e7ffdfab6717acfc", "5c82d43aa056fe3d0edc962d615a4063"),
}
_MAX_BYTES = 200_000_000  # the largest file has 155 million


@register("cifar100", summary="photographs of a hundred classes")
def load_cifar100(root: Path | None = None) -> DataSet:
    """50000 training and 10000 test images in a hundred fine classes, or a part of them.

    A part has no published checksum. A file with an unknown one is read too, by an unpickler that knows only arrays,
    and logged: results on it compare with no published ones. The cache folder keeps the converted tensors.

    Raises:
        MissingDataError: if neither folder nor archive is in `root`.
        CorruptDataError: if a file is absent or has wrong content, or the archive is unsafe.
    """
    source = _find(root)
    tensors = cifar.cached("cifar100", _identity(source), 100, lambda: _read(source))
    return cifar.data_set("cifar100", tensors, 100, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


def _find(root: Path | None) -> Path:
    if root is not None and root.is_dir():
        if (root / FOLDER).is_dir():
            return root / FOLDER
        # The complete archive first: a part has a longer name.
        for path in sorted(root.glob("cifar-100*"), key=lambda path: (len(path.name), path.name)):
            if path.name.lower().endswith(SUFFIXES) and path.is_file():
                return path
    layout = (
        "ROOT/cifar-100-python.tar.gz, or any cifar-100*.tar.gz, .tgz or .tar.xz, or the same unpacked",
        f"ROOT/{FOLDER}/ with {' and '.join(FILES)}",
    )
    raise missing("cifar100", root, layout, f"Get cifar-100-python.tar.gz from {cifar.PAGE}.")


def _identity(source: Path) -> str:
    """Identifies a source without reading it: two parts of the set must not share a cache."""
    files = [source / name for name in FILES] if source.is_dir() else [source]
    known = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
    return repr((str(source.resolve()), known))


def _read(source: Path) -> cifar.Splits:
    _log.info("reading CIFAR-100 from %s; this is done once", source)
    tensors: cifar.Splits = {}
    for name, content in cifar.read_files(source, FOLDER, FILES, _MAX_BYTES):
        if (found := cifar.md5(content)) not in MD5[name]:
            _log.warning("%s: %s has md5 %s, which is not the published one; it is read as a part", source, name, found)
        images, labels = cifar.decode(f"{source}: {name}", content, b"fine_labels", 100)
        tensors[f"{name}_images"], tensors[f"{name}_labels"] = images, labels
    if lacking := [name for name in FILES if f"{name}_images" not in tensors]:
        raise CorruptDataError(f"{source}: lacks {', '.join(lacking)}; get the archive again from {cifar.PAGE}")
    return tensors
