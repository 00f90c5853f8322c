"""`adagp compare --protocol budget`: its options, and how they start or continue the work."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp import data
from adagp.cli.common import print_json, print_table
from adagp.cli.display import Display
from adagp.cli.session import RecipeOptions, RunOptions, chosen_device, default_folder, fractions, numbers, resumable
from adagp.training import Recipe, RecipeError
from adagp.training.run.session import Session

if TYPE_CHECKING:
    from adagp.training.budget.settings import BudgetSettings

BUDGET = "budget"
_PROTOCOLS = ("epochs", BUDGET)


@dataclass(frozen=True)
class BudgetChoice:
    """The options of the budget protocol; None was not given."""

    rates: Annotated[
        str | None,
        typer.Option(help="Budget protocol: learning rates to choose from. Default: 0.5, 1, 2 x the recipe's."),
    ] = None
    batches: Annotated[
        str | None,
        typer.Option(help="Budget protocol: batch sizes to choose from for bp. Default: 0.5, 1 x the recipe's."),
    ] = None
    shares: Annotated[
        str | None, typer.Option(help="Budget protocol: parts of the budget that runs get. Default: 0.5,0.7,1.")
    ] = None
    validation: Annotated[
        int | None, typer.Option(help="Budget protocol: training items set aside to choose on. Default: 1000.")
    ] = None

    def values(self) -> dict[str, Any]:
        """The options that were given, by their names in a recipe file."""
        found: dict[str, Any] = {
            "rates": None if self.rates is None else fractions("rates", self.rates),
            "batch_sizes": None if self.batches is None else numbers("batches", self.batches),
            "shares": None if self.shares is None else fractions("shares", self.shares),
            "validation": self.validation,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return ["batches" if name == "batch_sizes" else name for name in self.values()]


def chosen_protocol(protocol: str | None, resumed: Path | None) -> str:
    """The protocol: that of the option, or of the folder that is resumed."""
    from adagp.training.budget.settings import holds

    if protocol not in (None, *_PROTOCOLS):
        raise RecipeError(f"protocol = '{protocol}' is unknown: choose one of {', '.join(_PROTOCOLS)}")
    return protocol or (BUDGET if resumed is not None and holds(resumed) else _PROTOCOLS[0])


def compare_budget(
    chosen: RecipeOptions,
    methods: str | None,
    seeds: str | None,
    options: BudgetChoice,
    out: Path | None,
    run_options: RunOptions,
) -> None:
    """Train what is missing, and print what there is."""
    from adagp.report.leaderboard import method_table, notes_line
    from adagp.training.budget.result import read_result
    from adagp.training.budget.work import work
    from adagp.training.planning import check_layers
    from adagp.training.run.folder import write_file

    settings = _settings(chosen, methods, seeds, options, out if run_options.resume else None)
    for name in settings.methods:
        check_layers(settings.recipe.replace(method=name))
    stem = chosen.base().name if chosen.names_base else f"{settings.recipe.data}-{settings.recipe.model}"
    path = out or default_folder(f"budget-{stem}", run_options.resume)
    where = chosen_device(run_options.device)
    with Display(run_options.as_json) as display:
        with resumable(display, run_options.resume_line("compare", path)) as interrupt:
            work(
                settings,
                path,
                lambda name: data.load_any(name, run_options.data_root),
                device=where,
                session=Session(display, interrupt, run_options.checkpoint_seconds),
                resume=run_options.resume,
            )
        result = read_result(path)
        write_file(path / "result.json", result.to_dict())
    if run_options.as_json:
        print_json({"folder": str(path), **result.to_dict()})
        return
    print_table(method_table(result))
    print(f"\n{notes_line(result)}\nwritten to {path}; `adagp leaderboard {path}` shows it again, with pictures")


def _settings(
    chosen: RecipeOptions, methods: str | None, seeds: str | None, options: BudgetChoice, resumed: Path | None
) -> "BudgetSettings":
    """The settings of the options, on top of those of the resumed folder if no other recipe is named."""
    from adagp.training.budget.options import BudgetOptions
    from adagp.training.budget.settings import BudgetSettings, holds, stored

    given = chosen.fields()
    for field, remedy in (("method", "--methods"), ("seed", "--seeds"), ("steps", "--epochs")):
        if field in given:
            raise RecipeError(f"{field} is set for each run of a comparison: choose with {remedy}")
    base = chosen.base()
    held = stored(resumed) if resumed is not None and holds(resumed) and not chosen.names_base else None
    recipe = Recipe.from_mapping(given, held.recipe if held else base.recipe).replace(method="bp", seed=0)
    return BudgetSettings.of(
        recipe,
        tuple(part.strip() for part in methods.split(",")) if methods else (held or base).methods,
        numbers("seeds", seeds) if seeds else (held or base).seeds,
        BudgetOptions.from_mapping(options.values(), held.options if held else base.budget),
        held.origin if held else _origin(chosen, given, options),
    )


def _origin(chosen: RecipeOptions, given: dict[str, Any], options: BudgetChoice) -> str:
    """The words of the command line that name the recipe and the grid."""
    words = [f"--preset {chosen.preset}"] if chosen.preset else []
    words += [f"--recipe {chosen.recipe_file}"] if chosen.recipe_file else []
    words += [f"--set {name}={value}" for name, value in given.items()]
    words += [
        f"--{name} {value}"
        for name, value in (
            ("rates", options.rates),
            ("batches", options.batches),
            ("shares", options.shares),
            ("validation", options.validation),
        )
        if value is not None
    ]
    return " ".join(words)
