import csv
import io

from adagp.report import Table, to_csv, to_markdown

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
