import csv
import io
import math

import pytest
from PIL import Image

from adagp.report import Table, to_csv, to_markdown
from adagp.report.curves import QUALITY_FIGURES, Curve, curves_png, quality_png
from adagp.training.tasks import Metric

TABLE = Table("A title", ("name", "value, %"), [("a|b", "1.5"), ('with "quotes", commas', "2")], ("a note",))


def test_csv_comes_back_as_it_was() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [list(TABLE.columns), *map(list, TABLE.rows)]


def test_markdown_keeps_its_columns() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[:4] == ["**A title**", "", "| name | value, % |", "| --- | --: |"]
    assert lines[4] == "| a\\|b | 1.5 |"
    assert lines[-1] == "- a note"


def test_plain_values_are_fit_for_json() -> None:
    assert TABLE.plain()["rows"] == [["a|b", "1.5"], ['with "quotes", commas', "2"]]


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
