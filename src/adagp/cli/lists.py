"""`adagp models`: the networks there are to choose from."""

from typing import Any

import torch

from adagp import AdaGP, models, schedules
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
