import io
import math

import pytest
from PIL import Image

from adagp.report.comparison_plots import QUALITY_FIGURES, Curve, curves_png, quality_png
from adagp.training.tasks import Metric


def colours(picture: Image.Image) -> int:
    found = picture.convert("RGB").getcolors(1_000_000)
    assert found is not None
    return len(found)


@pytest.mark.parametrize("panels", [1, 2, 5])
def test_curves_of_every_panel_are_drawn(panels: int) -> None:
    drawn = {f"panel {number}": [Curve("bp", [0.1, 0.2]), Curve("adagp", [0.1, 0.15])] for number in range(panels)}
    with Image.open(io.BytesIO(curves_png(drawn, Metric("accuracy", "accuracy"), dpi=50))) as picture:
        assert picture.size == (230 * min(3, panels), 170 * math.ceil(panels / 3))
        assert colours(picture.crop((0, 0, 230, 170))) > 20


def test_quality_has_four_panels_and_forgives_layers_without_figures() -> None:
    """A layer may be seen for the first time in a later epoch."""
    figures = dict.fromkeys(QUALITY_FIGURES, 0.5)
    epochs = [{"first": figures}, {"first": figures, "second": dict.fromkeys(QUALITY_FIGURES, 0.1)}]
    with Image.open(io.BytesIO(quality_png(epochs, "a title", dpi=60))) as picture:
        assert picture.size == (720, 480)
        for left in (0, 360):
            for top in (0, 240):
                assert colours(picture.crop((left, top, left + 360, top + 240))) > 20
