"""`python -m adagp.accelerator.freeze` traces the papers' networks and writes their work into the package."""

import io
from pathlib import Path

from adagp.accelerator.networks import PAIRS, file_name, fresh, write

FOLDER = Path(__file__).parent / "frozen"


def frozen_text(model: str, data: str) -> str:
    """What the file of a network and data set holds."""
    text = io.StringIO()
    write(fresh(model, data), text)
    return text.getvalue()


def main() -> None:
    """Write every file."""
    FOLDER.mkdir(exist_ok=True)
    for model, data in PAIRS:
        (FOLDER / file_name(model, data)).write_text(frozen_text(model, data), encoding="utf-8")


if __name__ == "__main__":
    main()
