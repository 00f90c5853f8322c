"""The folder of a comparison whose runs have known scores, written by hand."""

import json
from pathlib import Path

from adagp.training import Recipe
from adagp.training.budget.options import BudgetOptions
from adagp.training.budget.parts import Part, candidates, choosing_parts, judged_part
from adagp.training.budget.reference import Cost, Reference
from adagp.training.budget.settings import FILE, BudgetSettings
from adagp.training.tasks import Metric

RATES = (0.1, 0.2, 0.4)
ACCURACY = Metric("accuracy", "accuracy", is_share=True)
# Mean score in 0.5, 0.7 and 1 of a budget of 100 s; seeds lie around it.
SCORES = {"bp": (0.50, 0.60, 0.70), "progressive": (0.60, 0.68, 0.76), "skip": (0.40, 0.50, 0.55)}


def settings(seeds: tuple[int, ...], names: tuple[str, ...] = tuple(SCORES)) -> BudgetSettings:
    recipe = Recipe(model="resnet8", data="mnist5k", method="bp", epochs=10, batch_size=64, lr=0.2)
    return BudgetSettings.of(recipe, names, seeds, BudgetOptions(rates=RATES, batch_sizes=(64,)), "--preset demo")


def write(path: Path, seeds: tuple[int, ...], missing: tuple[str, ...] = (), best_rate: float = 0.2) -> BudgetSettings:
    """A comparison that lacks the runs of the methods in `missing`."""
    chosen = settings(seeds)
    path.mkdir(parents=True)
    (path / FILE).write_text(json.dumps(chosen.to_dict()))
    (path / "environment.json").write_text(json.dumps({"device_name": "a processor", "threads": 1}))
    costs = {f"{name}-batch64": Cost({"BP": 0.1, "COARSE": 0.1, "GP": 0.1}, 100) for name in chosen.methods}
    reference = Reference(100.0, "bp-batch64", costs, (ACCURACY,), "images", 1000, "by hand")
    (path / "reference").mkdir()
    (path / "reference" / "costs.json").write_text(json.dumps(reference.to_dict()))
    for name in chosen.methods:
        for part in choosing_parts(chosen, name):
            run(path, part, 0.9 if part.candidate.lr == best_rate else 0.8)
        best = next(candidate for candidate in candidates(chosen, name) if candidate.lr == best_rate)
        for place, share in enumerate(chosen.options.shares):
            for seed in seeds:
                if name not in missing:
                    # Seeds differ, and so do their differences, by much less than methods do.
                    own = 0.004 * (seed - 2) + 0.001 * ((seed * (len(name) + place)) % 3 - 1)
                    run(path, judged_part(best, share, seed), SCORES[name][place] + own)
    return chosen


def run(path: Path, part: Part, score: float) -> None:
    folder = path / part.folder
    folder.mkdir(parents=True)
    steps = round(1000 * part.share)
    record = {"batches": {"BP": steps, "GP": 0}, "metrics": {"accuracy": score}, "train_loss": 1 - score, "step": steps}
    (folder / "metrics.json").write_text(json.dumps([record]))
    (folder / "result.json").write_text(json.dumps({"steps": steps, "train_seconds": 1.0, "diverged": None}))
