"""Tables 2 to 5 of "Accelerated CNN Training Through Gradient Approximation" (paper 003), with our columns."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from adagp.report.table import Table
from adagp.training import Recipe, RecipeError, load_preset

SOURCES = ("zero", "random", "topk")
PAPER_NAMES = {"bp": "full gradient", "zero": "zero", "random": "random", "topk": "approximated (topk)"}
NETWORKS = {2: "cnn2", 3: "resnet20", 4: "vgg19", 5: "resnet20"}
"""The network of each accuracy table."""
SCHEDULES = {2: ("second-layer",), 3: ("1",), 4: ("1",), 5: ("1", "2", "3")}
SMALLER = "resnet14"
"""The cheaper network, trained by plain backpropagation, that any approximation of ResNet-20 must beat."""

# Speed-up in % (negative: slower; None: "over -100 %") and loss of accuracy in points, as printed.
PAPER_COSTS: dict[int, dict[str, tuple[float | None, float]]] = {
    2: {"zero": (-5.7, 0.2), "random": (-38.0, -0.8), "topk": (-6.6, 1.0)},
    3: {"zero": (7.1, 1.5), "random": (-1.4, 1.8), "topk": (3.5, 0.75), SMALLER: (22.0, 1.0)},
    4: {"zero": (7.3, 1.0), "random": (None, 0.1), "topk": (1.5, 0.7)},
}
# Validation accuracy in % under schedules 1, 2 and 3.
PAPER_TABLE_5 = {"zero": (90.3, 91.6, 91.1), "random": (90.0, 88.8, 87.9), "topk": (91.1, 91.6, 91.7)}
PAPER_FULL, PAPER_SMALLER = 91.8, 90.8

Results = Mapping[str, Mapping[str, Any]]


def recipes(tables: Sequence[int], seeds: Sequence[int], **changes: Any) -> dict[str, Recipe]:
    """Every run that the tables need, by label; a run that two tables share occurs once.

    `changes` set the scale: recipe fields such as `epochs` and `train_limit`.
    """
    unknown = [table for table in tables if table not in NETWORKS]
    if unknown or not tables:
        raise RecipeError(f"tables = {list(tables)}: choose from {', '.join(map(str, NETWORKS))}")
    base = load_preset("approximation").recipe.replace(**changes)
    found: dict[str, Recipe] = {}
    for table in tables:
        network = NETWORKS[table]
        for seed in seeds:
            for model in (network, SMALLER) if network == "resnet20" else (network,):
                found[label(model, "bp", None, seed)] = base.replace(model=model, method="bp", seed=seed)
            for schedule in SCHEDULES[table]:
                for source in SOURCES:
                    found[label(network, source, schedule, seed)] = base.replace(
                        model=network, method=source, schedule=schedule, seed=seed
                    )
    return found


def label(model: str, method: str, schedule: str | None, seed: int) -> str:
    """The name of a run, on the screen and as a folder."""
    return " ".join([model, method, *([f"schedule {schedule}"] if schedule else []), f"seed {seed}"])


# The paper's figures of curves: table and schedules.
CURVES = {5: (2, ("second-layer",)), 6: (3, ("1",)), 7: (4, ("1",)), 8: (5, ("2", "3"))}


def curves(tables: Sequence[int], results: Results, seeds: Sequence[int], file_format: str = "png") -> bytes:
    """Figures 5 to 8, of the runs of the tables: training loss and accuracy over the epochs of the first seed."""
    from adagp.report.comparison_plots import LearningCurve, learning_png
    from adagp.training.tasks.classification import Classification

    figures: dict[str, list[LearningCurve]] = {}
    for figure, (table, schedules) in CURVES.items():
        for schedule in schedules if table in tables else ():
            network = NETWORKS[table]
            runs = [("bp", None), *((source, schedule) for source in SOURCES)]
            figures[f"Figure {figure}: {network}, schedule {schedule}"] = [
                LearningCurve(PAPER_NAMES[method], method, found["train_losses"], found["scores"])
                for method, chosen in runs
                for found in (results[label(network, method, chosen, seeds[0])],)
            ]
    return learning_png(figures, Classification.metrics[0], file_format)


def scale(epochs: int, train_limit: int | None, data: str) -> str:
    """The scale of our runs, for the notes of the tables."""
    images = "all" if train_limit is None else f"{train_limit:,}"
    return f"{epochs} epoch{'s' if epochs > 1 else ''} of {images} images of {data}"


def accuracy_tables(tables: Sequence[int], results: Results, seeds: Sequence[int], scale: str) -> list[Table]:
    """Tables 2 to 5, ours beside the paper's."""
    return [
        _schedules_table(results, seeds, scale) if table == 5 else _costs_table(table, results, seeds, scale)
        for table in tables
    ]


def _costs_table(table: int, results: Results, seeds: Sequence[int], scale: str) -> Table:
    network, (schedule,) = NETWORKS[table], SCHEDULES[table]
    full = [results[label(network, "bp", None, seed)] for seed in seeds]
    rows = [("full gradient", _accuracy(full), "0.0", "0.0", "0.00", "0.00")]
    for name, (paper_speed, paper_loss) in PAPER_COSTS[table].items():
        model, method = (name, "bp") if name == SMALLER else (network, name)
        ours = [results[label(model, method, None if method == "bp" else schedule, seed)] for seed in seeds]
        loss = 100 * (_mean(full) - _mean(ours))
        printed = "< -100" if paper_speed is None else f"{paper_speed:+.1f}"
        shown = PAPER_NAMES.get(name, f"{name}, full gradient")
        rows.append((shown, _accuracy(ours), _speed_up(full, ours), printed, f"{loss:+.2f}", f"{paper_loss:+.2f}"))
    return Table(
        title=f"Table {table}: {network}, schedule {schedule}",
        columns=("method", "accuracy %", "speed-up %", "paper's", "accuracy loss", "paper's"),
        rows=rows,
        notes=_notes(seeds, scale),
    )


def _schedules_table(results: Results, seeds: Sequence[int], scale: str) -> Table:
    network = NETWORKS[5]

    def accuracy(model: str, method: str, schedule: str | None) -> str:
        return _accuracy([results[label(model, method, schedule, seed)] for seed in seeds])

    rows = [("full gradient", accuracy(network, "bp", None), f"{PAPER_FULL}", "", "", "", "")]
    for source, paper in PAPER_TABLE_5.items():
        cells = [
            cell
            for schedule, value in zip(SCHEDULES[5], paper, strict=True)
            for cell in (accuracy(network, source, schedule), f"{value}")
        ]
        rows.append((PAPER_NAMES[source], *cells))  # type: ignore[arg-type]
    rows.append((f"{SMALLER}, full gradient", accuracy(SMALLER, "bp", None), f"{PAPER_SMALLER}", "", "", "", ""))
    columns = [cell for schedule in SCHEDULES[5] for cell in (f"schedule {schedule}", "paper's")]
    return Table(
        title=f"Table 5: accuracy in % of {network} under three schedules",
        columns=("method", *columns),
        rows=rows,
        notes=_notes(seeds, scale),
    )


def _notes(seeds: Sequence[int], scale: str) -> tuple[str, ...]:
    return (
        f"ours: {scale}; {len(seeds)} seed{'s' if len(seeds) > 1 else ''}; the last epoch's accuracy, none picked",
        "the paper's: until validation accuracy stabilised (200 to 500 epochs), best of the checks every ten epochs",
        "speed-up: seconds of full-gradient training / the method's, in turns, with data and optimizer inside",
    )


def _mean(results: Sequence[Mapping[str, Any]]) -> float:
    return fmean(result["test_accuracy"] for result in results)


def _speed_up(full: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> str:
    """The speed-up in %; `-` if a run diverged, because it ended early."""
    if any(result["diverged"] for result in (*full, *ours)):
        return "-"
    return f"{100 * (_seconds(full) / _seconds(ours) - 1):+.1f}"


def _seconds(results: Sequence[Mapping[str, Any]]) -> float:
    return fmean(result["train_seconds"] for result in results)


def _accuracy(results: Sequence[Mapping[str, Any]]) -> str:
    lost = sum(bool(result["diverged"]) for result in results)
    return f"{100 * _mean(results):.2f}{f' ({lost} diverged)' if lost else ''}"
