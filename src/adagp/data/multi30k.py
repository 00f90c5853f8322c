"""Multi30k, English captions of photographs and their German translations, raw text (Elliott et al., 2016).

The captions alone are a data set for next-token prediction, `multi30k-en`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from adagp.data.archives import places
from adagp.data.files import CorruptDataError, missing
from adagp.data.reading import decode_text, read_limited
from adagp.data.registry import register
from adagp.data.text import Text
from adagp.data.translation import Pair, Translation

SPLITS = {"train": "train", "val": "val", "test": "test_2016_flickr"}
# Checksums of the text, so that the compression does not matter.
SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
}
_MAX_BYTES = 10_000_000  # five times the largest text
_SOURCE = "Get the files from https://github.com/multi30k/dataset (data/task1/raw)."


@register("multi30k", task="translation", summary="captions of photographs, English to German")
def load_multi30k(root: Path | None = None, *, checksums: Mapping[str, str] = SHA256) -> Translation:
    """29000 training, 1014 validation and 1000 test pairs; the test split is that of 2016, which papers report.

    Raises:
        MissingDataError: if the six files are not together.
        CorruptDataError: if a file is damaged, empty or not the published text, or the lines of two do not match.
    """
    folder = _find("multi30k", root, ("en", "de"))
    splits = {part: _pairs(folder, stem, checksums) for part, stem in SPLITS.items()}
    return Translation("multi30k", "en", "de", **splits)


@register("multi30k-en", task="next-token", summary="captions of photographs, English, one per line")
def load_captions(root: Path | None = None, *, checksums: Mapping[str, str] = SHA256) -> Text:
    """The English sides of `load_multi30k`, joined by line feeds; the German files are not needed.

    Raises:
        MissingDataError: if the three English files are not together.
        CorruptDataError: if a file is damaged, empty or not the published text.
    """
    folder = _find("multi30k-en", root, ("en",))
    splits = {part: "\n".join([*_lines(folder, f"{stem}.en", checksums), ""]) for part, stem in SPLITS.items()}
    return Text("multi30k-en", **splits)


def _find(name: str, root: Path | None, codes: Sequence[str]) -> Path:
    for place in places(root, "multi30k*", {}):
        for folder in (place / "multi30k", place):
            if all(_file(folder, f"{stem}.{code}") for stem in SPLITS.values() for code in codes):
                return folder
    layout = (
        *(f"ROOT/multi30k/{' and '.join(f'{stem}.{code}.gz' for code in codes)}" for stem in SPLITS.values()),
        "or the same without .gz, or all of them in ROOT/multi30k.tar.gz",
    )
    raise missing(name, root, layout, _SOURCE)


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def _pairs(folder: Path, stem: str, checksums: Mapping[str, str]) -> tuple[Pair, ...]:
    source, target = (_lines(folder, f"{stem}.{code}", checksums) for code in ("en", "de"))
    if len(source) != len(target):
        raise CorruptDataError(
            f"{folder}: {stem}.en has {len(source)} lines and {stem}.de {len(target)}, so they are no pairs; {_SOURCE}"
        )
    return tuple(zip(source, target, strict=True))


def _lines(folder: Path, name: str, checksums: Mapping[str, str]) -> list[str]:
    path = _file(folder, name)
    assert path is not None  # the folder was chosen for having it
    content = read_limited(path, _MAX_BYTES, _SOURCE)
    found = hashlib.sha256(content).hexdigest()
    if found != checksums[name]:
        raise CorruptDataError(f"{path}: its text has sha256 {found}, expected {checksums[name]}; {_SOURCE}")
    text = decode_text(path, content, _SOURCE)
    if not text.strip():
        raise CorruptDataError(f"{path}: has no sentences; {_SOURCE}")
    # Only a line feed ends a line: str.splitlines would also cut at characters that occur inside of sentences.
    return text.removesuffix("\n").split("\n")
