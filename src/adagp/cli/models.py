"""`adagp models`: the networks in all their forms."""

import json
import math
from typing import Annotated, Any

import typer

from adagp import models
from adagp.cli import options
from adagp.cli.common import command, print_table
from adagp.report.table import Table


@command
def models_command(
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Also show how much of each network predictions can cover.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list on stdout instead of a table.")] = False,
    debug: options.Debug = False,
) -> None:
    """List the networks in all their forms, their size, and how many layers predictions can cover.

    `adagp train` takes the first form of a network, or for data of large images `imagenet`; `--set form=` chooses.

    Try:

    - `adagp models`: a table.
    - `adagp models --coverage`: with the share of parameters and of multiply-adds in covered layers.
    - `adagp train --model resnet14`: train one of them.
    """
    del debug
    rows = [_row(name, form, coverage=coverage) for name in models.names() for form in models.forms(name)]
    if as_json:
        print(json.dumps(rows))
        return
    columns = ["model", "form", "input", "parameters", "covered layers"]
    notes = ["covered: layers whose gradient can be predicted; the others wait for the next BP batch"]
    if coverage:
        columns += ["their weights %", "million MACs", "their MACs %"]
        notes.append("their: in the covered layers, of the network's parameters and MACs")
        notes.append("MACs: multiply-adds of one forward of one sample, matrix products and convolutions only")
    print_table(Table("Models", tuple(columns), [_cells(row) for row in rows], tuple(notes), text_columns=3))


def _row(name: str, form: str, *, coverage: bool) -> dict[str, Any]:
    """The facts of a network, built on the meta device because no weight is needed."""
    import torch

    from adagp.cost import multiply_adds
    from adagp.layers.coverage import find_layers, present_coverage

    with torch.device("meta"):
        model = models.build(name, form).eval()
        inputs = models.example_inputs(name, form)
    layers, reasons = find_layers(model, model.parameters())
    row = {
        "name": name,
        "form": form,
        "task": models.task(name),
        "sizes": models.sizes(name, form),
        "inputs": [list(argument.shape[1:]) for argument in inputs],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "covered_layers": len(layers),
    }
    if coverage:
        total, covered = multiply_adds(model, inputs, [layer.name for layer in layers])
        row |= {
            "covered_parameters_share": present_coverage(model, model.parameters(), layers, reasons).share,
            "multiply_adds": total,
            "covered_multiply_adds_share": covered / total,
        }
    return row


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    inputs = " and ".join("x".join(map(str, shape)) for shape in row["inputs"])
    cells = [row["name"], row["form"], inputs, f"{row['parameters']:,}", str(row["covered_layers"])]
    if "multiply_adds" in row:
        cells += [
            _percent(row["covered_parameters_share"]),
            f"{row['multiply_adds'] / 1e6:,.1f}",
            _percent(row["covered_multiply_adds_share"]),
        ]
    return tuple(cells)


def _percent(share: float) -> str:
    """Rounded down, so that 100.00 means all."""
    return f"{math.floor(10_000 * share) / 100:.2f}"
