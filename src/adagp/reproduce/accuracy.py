"""Tables 1 to 3 of the ADA-GP paper: what networks reach by backpropagation and by ADA-GP, ours beside the paper's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import TYPE_CHECKING, Any

from adagp.report.table import Table
from adagp.training import Recipe, RecipeError, load_preset, preset_names

if TYPE_CHECKING:
    from adagp.training.tasks import Metric

METHODS = ("bp", "adagp")
KINDS = ("tuned", "paper")
Results = Mapping[str, Mapping[str, Any]]

# Top-1 accuracy in % as printed in table 1: backpropagation, then ADA-GP, on CIFAR-10, CIFAR-100 and ImageNet.
PAPER_TABLE_1 = {
    "resnet50": (92.97, 93.76, 75.44, 75.73, 74.73, 73.97),
    "resnet101": (92.78, 93.62, 73.23, 75.38, 76.26, 75.71),
    "resnet152": (92.8, 93.12, 72.01, 73.7, 76.68, 76.23),
    "inception_v4": (91.22, 91.35, 70.52, 72.42, 76.23, 75.9),
    "inception_v3": (93.04, 93.88, 76.41, 77.68, 74.44, 73.87),
    "vgg13": (91.52, 92.55, 70.48, 70.41, 70.68, 70.68),
    "vgg16": (91.32, 92.34, 70.36, 70.47, 72.07, 71.98),
    "vgg19": (91.18, 92.51, 69.69, 69.85, 72.94, 72.83),
    "densenet121": (93.2, 93.63, 76.25, 76.12, 75.25, 74.51),
    "densenet161": (93.48, 94.19, 76.87, 77.38, 76.43, 76.71),
    "densenet169": (93.24, 94.15, 75.57, 76.4, 75.36, 75.3),
    "densenet201": (93.26, 94.13, 76.37, 76.96, 75.52, 75.56),
    "mobilenet_v2": (90.08, 91.34, 68.11, 68.47, 69.88, 69.23),
}
_COLUMNS = {"cifar10": 0, "cifar100": 2, "imagenet": 4, "imagenette": 4, "image-folder": 4}
# As printed, with the speed-up that the paper computes in cycles. In table 2: validation accuracy in %, loss, BLEU; in
# table 3: class accuracy in %, mAP, and of its designs the fastest.
PAPER_TABLE_2 = {"bp": ("52.42", "1.61", "33.52", "1.00"), "adagp": ("52.14", "1.65", "33.40", "1.13")}
PAPER_TABLE_3 = {"bp": ("83.03", "46.85", "1.00"), "adagp": ("82.51", "46.74", "1.26")}


@dataclass(frozen=True)
class Cell:
    """One network on one data set, trained by every method."""

    data: str
    model: str

    def __str__(self) -> str:
        """Return the name on the command line and of the folder."""
        return f"{self.data}-{self.model}"


CELLS = {
    1: (
        Cell("cifar10", "vgg13"),
        Cell("cifar10", "resnet50"),
        Cell("cifar10", "mobilenet_v2"),
        Cell("cifar100", "densenet121"),
        Cell("imagenette", "inception_v3"),
    ),
    2: (Cell("multi30k", "transformer"),),
    3: (Cell("voc2007", "yolo_v3"),),
}
"""The default cells of each table, which a processor can train within minutes each."""

# The scale of a processor: five to twenty minutes of one core for each run.
SMALL: Mapping[Cell, Mapping[str, Any]] = {
    CELLS[1][0]: {"epochs": 3, "train_limit": 3000, "test_limit": 2000},
    CELLS[1][1]: {"epochs": 4, "train_limit": 2000, "test_limit": 1000, "batch_size": 32},
    CELLS[1][2]: {"epochs": 6, "train_limit": 3000, "test_limit": 2000},
    CELLS[1][3]: {"epochs": 4, "train_limit": 2000, "test_limit": 1000, "batch_size": 32},
    CELLS[1][4]: {"epochs": 4, "batch_size": 32, "form": "cifar", "image_size": 32},
    CELLS[3][0]: {"epochs": 8, "image_size": 96},
}
# Short runs need a lower learning rate than the one tuned for long runs.
_SMALL_LR = 0.01


def metric(table: int) -> "Metric":
    """The metric that the runs of a table are judged by."""
    from adagp.training.tasks.classification import Classification
    from adagp.training.tasks.detection import ObjectDetection
    from adagp.training.tasks.translation import TextTranslation

    metrics = {1: Classification.metrics, 2: TextTranslation.metrics, 3: ObjectDetection.metrics}
    return metrics[table][0]


def parse_cells(table: int, text: str) -> tuple[Cell, ...]:
    """Cells of a table from a list such as `cifar10-vgg13,cifar100-resnet50`.

    Raises:
        RecipeError: For a network or data that the table does not have.
    """
    models = {1: tuple(PAPER_TABLE_1), 2: (CELLS[2][0].model,), 3: (CELLS[3][0].model,)}[table]
    sets = {1: tuple(_COLUMNS), 2: ("multi30k",), 3: ("voc2007", "voc2012")}[table]
    known = {str(cell): cell for cell in (Cell(data, model) for data in sets for model in models)}
    parts = [part.strip() for part in text.split(",")]
    unknown = [part for part in parts if part not in known]
    if unknown or len(set(parts)) < len(parts):
        raise RecipeError(
            f"cells = '{text}': name each DATA-MODEL once, with data from {', '.join(sets)} and a model from "
            f"{', '.join(models)}"
        )
    return tuple(known[part] for part in parts)


def recipes(
    cell: Cell, kind: str, seeds: Sequence[int], *, full: bool, changes: Mapping[str, Any]
) -> dict[str, Recipe]:
    """Every run of a cell, by its label.

    Args:
        cell: What is trained.
        kind: `tuned`, or `paper` for the paper's hyper-parameters.
        seeds: The seeds of each method.
        full: Take the preset's own length and data in place of the scale of a processor.
        changes: Recipe fields that override all others.
    """
    if kind not in KINDS:
        raise RecipeError(f"kind = '{kind}': choose one of {', '.join(KINDS)}")
    if chosen := [name for name in ("model", "data", "method", "seed") if name in changes]:
        raise RecipeError(f"{', '.join(chosen)}: cannot be set: the cells, methods and seeds of the table decide it")
    base = _preset_recipe(cell, kind)
    recipe = Recipe.from_mapping({**({} if full else _small(cell, kind)), **changes}, base)
    return {label(cell, method, seed): recipe.replace(method=method, seed=seed) for seed in seeds for method in METHODS}


def label(cell: Cell, method: str, seed: int) -> str:
    """The name of a run, on the screen and as a folder."""
    return f"{cell} {method} seed {seed}"


def table(number: int, cells: Sequence[Cell], results: Results, seeds: Sequence[int], notes: tuple[str, ...]) -> Table:
    """One of the paper's tables 1 to 3, filled with these results of its cells."""
    build = {1: _accuracy_table, 2: _translation_table, 3: _detection_table}[number]
    return build(cells, results, seeds, notes)


def _accuracy_table(cells: Sequence[Cell], results: Results, seeds: Sequence[int], notes: tuple[str, ...]) -> Table:
    """A row for each network and data set."""
    rows = []
    for cell in cells:
        bp, ours = ([results[label(cell, method, seed)] for seed in seeds] for method in METHODS)
        first = _COLUMNS[cell.data]
        paper = PAPER_TABLE_1[cell.model][first : first + 2]
        accuracies = [100 * _mean(runs, "test_accuracy") for runs in (bp, ours)]
        rows.append(
            (
                f"{cell.model} {cell.data}",
                *(f"{value:.2f}" for value in accuracies),
                f"{accuracies[1] - accuracies[0]:+.2f}",
                *(f"{value:.2f}" for value in paper),
                f"{paper[1] - paper[0]:+.2f}",
                *(f"{_mean(runs, 'train_seconds'):.0f}" for runs in (bp, ours)),
                *_speeds(bp, ours),
            )
        )
    return Table(
        title="Table 1: accuracy in % by backpropagation (BP) and by ADA-GP (GP)",
        columns=("network", "BP", "GP", "gain", "paper BP", "paper GP", "gain", "BP s", "GP s", *_SPEEDS),
        rows=rows,
        notes=(*notes, *_SPEED_NOTES, "imagenette: a part of ImageNet; the paper's figures beside it are ImageNet's"),
    )


def _translation_table(cells: Sequence[Cell], results: Results, seeds: Sequence[int], notes: tuple[str, ...]) -> Table:
    """A row for each method, and the paper's."""
    (cell,) = cells
    runs = {method: [results[label(cell, method, seed)] for seed in seeds] for method in METHODS}
    rows = [
        (
            method,
            f"{100 * _mean(own, 'test_token_accuracy'):.2f}",
            f"{_mean(own, 'test_loss'):.3f}",
            f"{_mean(own, 'test_bleu'):.2f}",
            f"{_mean(own, 'test_beam_bleu'):.2f}" if all("test_beam_bleu" in run for run in own) else "-",
            f"{_mean(own, 'train_seconds'):.0f}",
            *_speeds(runs["bp"], own),
        )
        for method, own in runs.items()
    ]
    for method, (accuracy, loss, bleu, cycles) in PAPER_TABLE_2.items():
        rows.append((f"paper's {method}", accuracy, loss, bleu, "-", "-", cycles, "-"))
    return Table(
        title="Table 2: Transformer with 3+3 layers on Multi30k, English to German",
        columns=("method", "token accuracy %", "loss", "BLEU", "beam BLEU", "train s", *_SPEEDS),
        rows=rows,
        notes=(
            *notes,
            *_SPEED_NOTES,
            "ours: on test_2016_flickr, tokens are pieces of words; the paper names neither; its speed-up is in cycles",
        ),
    )


def _detection_table(cells: Sequence[Cell], results: Results, seeds: Sequence[int], notes: tuple[str, ...]) -> Table:
    """A row for each method, and the paper's."""
    (cell,) = cells
    runs = {method: [results[label(cell, method, seed)] for seed in seeds] for method in METHODS}
    rows = [
        (
            method,
            f"{100 * _mean(own, 'test_class_accuracy'):.2f}",
            f"{100 * _mean(own, 'test_map50'):.2f}",
            f"{_mean(own, 'test_loss'):.2f}",
            f"{_mean(own, 'train_seconds'):.0f}",
            *_speeds(runs["bp"], own),
        )
        for method, own in runs.items()
    ]
    for method, (accuracy, precision, cycles) in PAPER_TABLE_3.items():
        rows.append((f"paper's {method}", accuracy, precision, "-", "-", cycles, "-"))
    return Table(
        title="Table 3: YOLO-v3 on Pascal VOC",
        columns=("method", "class accuracy %", "mAP@0.5 %", "test loss", "train s", *_SPEEDS),
        rows=rows,
        notes=(*notes, *_SPEED_NOTES, "the paper's speed-up is in cycles, of ADA-GP-MAX"),
    )


def curves(number: int, recipes: Mapping[Cell, Mapping[str, Recipe]], results: Results) -> bytes:
    """The score of every run over its epochs, as PNG with a panel for each cell."""
    from adagp.report.comparison_plots import Curve, curves_png

    panels = {
        str(cell): [Curve(results[name]["method"], results[name]["scores"]) for name in of_cell]
        for cell, of_cell in recipes.items()
    }
    return curves_png(panels, metric(number))


_SPEEDS = ("speed-up", "by medians")
_SPEED_NOTES = (
    "speed-up: seconds of BP / those of ADA-GP, in turns, with data, predictor and optimizer inside",
    "by medians: the same of batches counted by phase times their median, which a machine that pauses does not move",
)


def scale_notes(recipes: Mapping[str, Recipe], seeds: Sequence[int], machine: str) -> tuple[str, ...]:
    """Notes about the scale of our runs, one for each network."""
    notes = []
    for recipe in {recipe.model + recipe.data: recipe for recipe in recipes.values()}.values():
        count = "all training items" if recipe.train_limit is None else f"{recipe.train_limit:,} training items"
        size = "" if recipe.image_size is None else f", {recipe.image_size} pixels"
        rate = f"{recipe.optimizer} at {recipe.lr:g}, {recipe.lr_schedule}"
        notes.append(
            f"{recipe.model} on {recipe.data}: {recipe.epochs} epoch{'s' if recipe.epochs > 1 else ''} of {count}, "
            f"batch {recipe.batch_size}{size}, {rate}"
        )
    return (
        *notes,
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}; the last epoch's figures, none picked; {machine}",
    )


def _preset_recipe(cell: Cell, kind: str) -> Recipe:
    """The cell's own preset, or that of another network on the same data."""
    own = f"{cell}-{kind}"
    if own in preset_names():
        return load_preset(own).recipe
    return load_preset(f"{_like(cell)}-{kind}").recipe.replace(model=cell.model, data=cell.data)


def _small(cell: Cell, kind: str) -> dict[str, Any]:
    """The scale of a processor: the cell's own, or that of another network on the same data."""
    scale = dict(SMALL[cell] if cell in SMALL else SMALL.get(_like(cell), {}))
    return scale | {"lr": _SMALL_LR} if kind == "tuned" and cell.model in PAPER_TABLE_1 else scale


def _like(cell: Cell) -> Cell:
    """The cell of the same or the nearest data that is trained by default."""
    if cell.model in (CELLS[2][0].model, CELLS[3][0].model):
        return next(known for number in (2, 3) for known in CELLS[number] if known.model == cell.model)
    data = "imagenette" if cell.data in ("imagenet", "image-folder") else cell.data
    return next(known for known in CELLS[1] if known.data == data)


def _mean(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    return fmean(run[name] for run in runs)


def _speeds(bp: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The speed-up by seconds and by medians; `-` if a run diverged, because it ended early."""
    if any(run["diverged"] for run in (*bp, *ours)):
        return iter(("-", "-"))
    by_seconds = _mean(bp, "train_seconds") / _mean(ours, "train_seconds")
    by_medians = fmean(map(_median_seconds, bp)) / fmean(map(_median_seconds, ours))
    return iter((f"{by_seconds:.2f}", f"{by_medians:.2f}"))


def _median_seconds(run: Mapping[str, Any]) -> float:
    counts: dict[str, int] = run["batches"]
    return fsum(1e-3 * run["median_ms"][phase] * count for phase, count in counts.items() if count)
