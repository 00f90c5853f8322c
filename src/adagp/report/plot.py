"""The style of every picture: pale grid, open frame, and the same bytes from run to run.

matplotlib is an extra and slow to import, so functions import it, never a module.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PICTURE_FORMATS = ("png", "svg")


def picture_format(path: Path) -> str:
    """The format that a file's name asks for.

    Raises:
        ValueError: if it is not one of `PICTURE_FORMATS`.
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending not in PICTURE_FORMATS:
        raise ValueError(
            f"picture={path}: cannot be drawn as '{ending}'; end the name in .{' or .'.join(PICTURE_FORMATS)}"
        )
    return ending


def figure_with(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Sequence[Any]]:
    """A figure in inches and its panels, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def dress(panel: Any, title: str, across: str, up: str) -> None:
    """Set the title, labels, grid and frame of a panel."""
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    panel.grid(color="#dddddd", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def viridis() -> Any:
    """The colour map of layers, from the first to the last."""
    import matplotlib

    return matplotlib.colormaps["viridis"]


def saved(figure: Any, file_format: str = "png", dpi: int = 110) -> bytes:
    """A figure as PNG or SVG. It has no date and fixed names inside, so equal figures give equal bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {"Software": "adagp"}
    with matplotlib.rc_context({"svg.hashsalt": "adagp"}):
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
