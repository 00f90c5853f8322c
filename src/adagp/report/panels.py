"""How every picture looks: pale grid, open frame, and bytes that are the same from run to run.

matplotlib is an extra: here, as wherever a picture is drawn, it is imported when there is one to draw.
"""

import io
from typing import Any


def dress(panel: Any, title: str, across: str, up: str) -> None:
    """Title, labels, grid and frame of a panel."""
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    panel.grid(color="#dddddd", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def viridis() -> Any:
    """The colours of layers, from the first to the last."""
    import matplotlib

    return matplotlib.colormaps["viridis"]


def saved(figure: Any, file_format: str, dpi: int = 110) -> bytes:
    """A figure as PNG or SVG; without a date and with fixed names inside, the same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {"Software": "adagp"}
    with matplotlib.rc_context({"svg.hashsalt": "adagp"}):
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
