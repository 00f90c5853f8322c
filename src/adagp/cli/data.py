"""`adagp data`: the data sets that are there, and where the missing ones are expected."""

import json
from typing import Any

from adagp import data
from adagp.cli import options
from adagp.cli.common import command, print_table
from adagp.report.table import Table


@command
def data_command(data_root: options.Root = None, as_json: options.Json = False, debug: options.Debug = False) -> None:
    """List the data sets with their task and size, and where the missing ones are expected.

    Every set is loaded, so that what is listed as there can be used; archives are unpacked on the way.

    Try:

    - `adagp data --data-root DIR`: with the data sets in a folder of yours.
    - `adagp train --data digits`: train on one of them.
    """
    del debug
    rows: list[dict[str, Any]] = []
    for name in data.names():
        entry = data.entry(name)
        row = {"name": name, "task": entry.task, "summary": entry.summary}
        try:
            rows.append({**row, "available": True, **_facts(data.load_any(name, data_root))})
        except (data.MissingDataError, data.CorruptDataError) as error:
            rows.append({**row, "available": False, "reason": str(error)})
    if as_json:
        print(json.dumps(rows))
        return
    cells = [
        (
            row["name"],
            row["task"],
            "yes" if row["available"] else "no",
            _sizes(row),
            _form(row),
            str(row.get("classes", "")),
        )
        for row in rows
    ]
    columns = ("data", "task", "there", "train / val / test", "form", "classes")
    print_table(Table("Data sets", columns, cells, text_columns=3))
    for row in rows:
        if not row["available"]:
            print(f"\n{row['reason']}")


def _facts(dataset: "data.AnyDataSet") -> dict[str, Any]:
    """The number of items in each split, and their form."""
    sizes = {part: len(getattr(dataset, part)) for part in ("train", "val", "test") if hasattr(dataset, part)}
    match dataset:
        case data.DataSet():
            shape = [dataset.channels, dataset.size, dataset.size]
            return {**sizes, "shape": shape, "classes": dataset.num_classes}
        case data.Translation():
            return {**sizes, "languages": [dataset.source, dataset.target]}
        case data.Detection():
            boxes = sum(len(image.labels) for image in (*dataset.train, *dataset.test))
            return {**sizes, "boxes": boxes, "classes": len(dataset.classes)}
        case data.Text():
            return {**sizes, "unit": "characters"}


def _sizes(row: dict[str, Any]) -> str:
    return " / ".join(f"{row[part]:,}" for part in ("train", "val", "test") if part in row)


def _form(row: dict[str, Any]) -> str:
    if "shape" in row:
        return "x".join(map(str, row["shape"]))
    if "languages" in row:
        return " to ".join(row["languages"])
    return f"{row['boxes']:,} boxes" if "boxes" in row else row.get("unit", "")
