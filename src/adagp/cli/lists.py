"""`adagp models` and `adagp data`: what there is to choose from."""

from typing import Any

import torch

from adagp import AdaGP, data, models, schedules
from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.report import Table


@command
def models_command(as_json: options.Json = False, debug: options.Debug = False) -> None:
    """List the models, their size, and how much of them predictions can cover.

    Try:

    - `adagp models`: a table.
    - `adagp train --model resnet14`: train one of them.
    """
    del debug
    rows: list[dict[str, Any]] = []
    for name in models.names():
        model = models.build(name)
        gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.always_backprop(), predictor=None)
        covered = [row for row in gp.coverage().rows if row.covered]
        rows.append(
            {
                "model": name,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "covered_layers": len(covered),
                "covered_share": gp.coverage().share,
            }
        )
    if as_json:
        print_json({"models": rows})
        return
    cells = [
        (row["model"], f"{row['parameters']:,}", str(row["covered_layers"]), f"{100 * row['covered_share']:.1f}")
        for row in rows
    ]
    print_table(Table("Models (10 classes, 3 channels)", ("model", "parameters", "covered layers", "covered %"), cells))


@command
def data_command(data_root: options.Root = None, as_json: options.Json = False, debug: options.Debug = False) -> None:
    """List the data sets, and for those that are not there, where they are expected.

    Try:

    - `adagp data --data-root DIR`: with the data sets in a folder of yours.
    - `adagp train --data digits`: train on one of them.
    """
    del debug
    rows: list[dict[str, Any]] = []
    for name in data.names():
        try:
            dataset = data.load(name, data_root)
        except (data.MissingDataError, data.CorruptDataError) as error:
            rows.append({"data": name, "available": False, "reason": str(error)})
            continue
        rows.append(
            {
                "data": name,
                "available": True,
                "train_images": len(dataset.train.labels),
                "test_images": len(dataset.test.labels),
                "shape": [dataset.channels, dataset.size, dataset.size],
                "classes": dataset.num_classes,
            }
        )
    if as_json:
        print_json({"data": rows})
        return
    there = [
        (row["data"], f"{row['train_images']:,}", f"{row['test_images']:,}", " x ".join(map(str, row["shape"])))
        for row in rows
        if row["available"]
    ]
    print_table(Table("Data sets", ("data", "training images", "test images", "shape"), there))
    for row in rows:
        if not row["available"]:
            print(f"{row['data']} is not available: {row['reason']}")
