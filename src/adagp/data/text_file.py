"""Your own text: one file, or a folder with train.txt and test.txt."""

from pathlib import Path

from adagp.data.files import CorruptDataError, missing
from adagp.data.reading import decode_text, read_limited
from adagp.data.registry import register
from adagp.data.text import Text

MAX_BYTES = 100_000_000  # the tokens are kept in memory, at most eight bytes for each of these
TEST_SHARE = 0.1
_REMEDY = "give a file of plain text"


@register("text-file", task="next-token", summary="your own text, one file or a folder with train.txt and test.txt")
def load_text_file(root: Path | None = None) -> Text:
    """Load the text in the data root; of a single file the last tenth of the characters is the test split.

    Raises:
        MissingDataError: if `root` is neither a file nor a folder with both texts.
        CorruptDataError: if a text is empty, too large or not UTF-8, or too short to be split.
    """
    if root is not None and root.is_file():
        text = _read(root)
        cut = int(len(text) * (1 - TEST_SHARE))
        return _splits(root, text[:cut], "", text[cut:])
    if root is not None and all((root / f"{part}.txt").is_file() for part in ("train", "test")):
        val = root / "val.txt"
        return _splits(root, _read(root / "train.txt"), _read(val) if val.is_file() else "", _read(root / "test.txt"))
    layout = ("ROOT itself a text file, or ROOT/train.txt and ROOT/test.txt (and ROOT/val.txt)",)
    raise missing("text-file", root, layout, "This is text of your own.")


def _read(path: Path) -> str:
    text = decode_text(path, read_limited(path, MAX_BYTES, _REMEDY), _REMEDY)
    if not text.strip():
        raise CorruptDataError(f"{path}: has no text; {_REMEDY}")
    return text


def _splits(root: Path, train: str, val: str, test: str) -> Text:
    try:
        return Text("text-file", train, val, test)
    except ValueError as error:
        raise CorruptDataError(f"{root}: is too short to be split ({error}); {_REMEDY}") from error
