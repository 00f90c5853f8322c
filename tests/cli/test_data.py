import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagp import data
from adagp.cli import app
from tests.data.making import picture, write_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with two classes of one's own and a damaged CIFAR-100."""
    places = [f"{split}/{name}/1.png" for split in ("train", "val") for name in ("cat", "dog")]
    write_files(tmp_path / "root", {place: picture(8, 8) for place in places} | {"cifar-100.tar.gz": b"damaged"})
    return tmp_path / "root"


def test_json_is_a_list_of_every_set(root: Path) -> None:
    result = CliRunner().invoke(app, ["data", "--data-root", str(root), "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert list(rows) == data.names()
    assert {name: row["task"] for name, row in rows.items()} == {name: data.entry(name).task for name in data.names()}
    assert rows["digits"]["available"] is True
    assert (rows["digits"]["train"], rows["digits"]["test"], rows["digits"]["shape"]) == (1437, 360, [1, 8, 8])
    own = rows["image-folder"]
    assert (own["available"], own["train"], own["test"], own["classes"]) == (True, 2, 2, 2)
    for name, text in (("multi30k", "ROOT/multi30k/train.en.gz"), ("voc2007", "VOCdevkit"), ("cifar10", "toronto")):
        assert rows[name]["available"] is False
        assert text in rows[name]["reason"]
    assert rows["cifar100"]["available"] is False
    assert "cifar-100.tar.gz: cannot be read" in rows["cifar100"]["reason"]


def test_the_table_shows_every_set_and_where_the_missing_are_expected(root: Path) -> None:
    result = CliRunner().invoke(app, ["data", "--data-root", str(root)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for name in data.names():
        assert name in result.stdout
    assert "1,437 / 360" in result.stdout
    assert "ROOT/imagenet/train/n01440764/*.JPEG" in result.stdout
