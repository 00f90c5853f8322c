"""Several methods over several seeds under one protocol, advanced in turns so that all meet the same machine."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from adagp.data import AnyDataSet
from adagp.files import remove_leftovers, strict
from adagp.training import methods
from adagp.training.calibrate import Calibration, calibrate, expected_seconds, steps_within
from adagp.training.defaults import CHECKPOINT_SECONDS
from adagp.training.environment import cpu_threads, describe
from adagp.training.errors import RecipeError, RunFolderError
from adagp.training.interrupt import Interrupt
from adagp.training.loop import Run, steps_per_epoch
from adagp.training.observers import Observer
from adagp.training.planning import unused_options
from adagp.training.recipe import Recipe
from adagp.training.runfolder import RunFolder, make_folder, read_file, write_file
from adagp.training.tasks import Metric
from adagp.training.turns import take_turns
from adagp.training.verdict import REFERENCES, Outcome, speedup, verdict

# What a run of another length does to the learning rate, by the recipe's lr_schedule.
_RATES = {
    "cosine": "learning rate (cosine) decayed to zero within it",
    "step": "learning rate (step) decayed in full within it",
    "exponential": "learning rate (exponential) decayed to a hundredth within it",
    "constant": "learning rate constant, not decayed",
    "plateau": "learning rate lowered when the test loss stalls, not fitted to the length",
}


@dataclass(frozen=True)
class Settings:
    """What a comparison compares.

    Attributes:
        recipe: Everything the runs share; its method and seed are set per run, and where time decides, its steps.
        methods: The methods.
        seeds: The seeds each method runs with.
        budget_seconds: None: the same number of epochs (or steps) for all. Else the same training seconds for all, with
            the ladder, and a learning rate that decays over the run, stretched to what each can do in them.
    """

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    budget_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be compared, before anything is trained."""
        problems = []
        unknown = [name for name in self.methods if name not in methods.names()]
        if unknown:
            problems.append(f"unknown methods {', '.join(unknown)}: choose from {', '.join(methods.names())}")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            problems.append("methods must name each method once, and at least one")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            problems.append("seeds must name each seed once, and at least one")
        if any(type(seed) is not int or not 0 <= seed < 2**63 for seed in self.seeds):
            problems.append("seeds must be whole numbers from 0 to 2**63 - 1")
        if self.budget_seconds is not None and not 0 < self.budget_seconds < float("inf"):
            problems.append(f"budget = {self.budget_seconds} must be a positive number of seconds")
        if "short-bp" in self.methods and self.budget_seconds is None and self.short_reference is None:
            problems.append(
                f"short-bp is given the time of another method, but none of {', '.join(REFERENCES)} takes part: add one"
            )
        if self.budget_seconds is not None and self.recipe.steps is not None:
            problems.append(
                f"steps = {self.recipe.steps} and a budget of seconds both set the length: give one of them"
            )
        if not unknown:
            problems += unused_options(self.methods, self.recipe)
        chosen = self.recipe.predictor
        if "adagp-paper" in self.methods and chosen not in (None, methods.get("adagp-paper").predictor):
            problems.append(
                f"predictor = {chosen} would make adagp-paper something else: leave adagp-paper or predictor out"
            )
        if problems:
            raise RecipeError("; ".join(problems))

    @property
    def short_reference(self) -> str | None:
        """The method whose time short-bp is given."""
        return next((name for name in REFERENCES if name in self.methods), None)

    @property
    def effective_methods(self) -> tuple[str, ...]:
        """The methods that run: under a time budget short-bp is bp itself."""
        if self.budget_seconds is None:
            return self.methods
        names = tuple(name for name in self.methods if name != "short-bp")
        return names if "bp" in names else (*names, "bp") if "short-bp" in self.methods else names

    @property
    def protocol(self) -> str:
        """The protocol in words."""
        rate = _RATES[self.recipe.lr_schedule]
        if self.budget_seconds is not None:
            return f"{self.budget_seconds:g} s of training each, ladder stretched to it, {rate}"
        if self.recipe.steps is not None:
            length = f"{self.recipe.steps} batch{'es' if self.recipe.steps > 1 else ''} each"
        else:
            length = f"{self.recipe.epochs} epoch{'s' if self.recipe.epochs > 1 else ''} each"
        short = f" (short-bp: as many batches as fit into {self.short_reference}'s time, {rate})"
        return length + (short if "short-bp" in self.methods else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `compare.json`."""
        return {
            "recipe": self.recipe.to_dict(),
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "budget_seconds": self.budget_seconds,
        }


@dataclass(frozen=True)
class SeedResult:
    """One finished run: its score, all metrics, seconds, curves (one entry per epoch), why it diverged, if it did.

    `reasons` are those an adaptive schedule gave for each change of its k:m.
    """

    seed: int
    score: float
    best_score: float
    metrics: dict[str, float]
    test_loss: float
    train_seconds: float
    epochs: list[float]
    scores: list[float]
    seconds: list[float]
    diverged: str | None = None
    reasons: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class MethodResult:
    """One method over all seeds.

    Attributes:
        method: Its name.
        summary: What it is.
        steps: Batches of each of its runs.
        score: Mean of the comparison's metric after the last epoch.
        score_std: Standard deviation over seeds; None for one seed.
        train_seconds: Mean seconds of training, predictor included, evaluation excluded.
        speedup: Seconds of bp in this comparison divided by this method's; None when bp did not take part or a
            run of either diverged, because that ended early.
        batch_ms: Median milliseconds of a batch with true gradients (`BP`, warm-up included), of a `MIXED` batch, in
            which some layers have another source, and of a `GP` batch.
        predictor_ms: Median milliseconds of the predictor within them.
        peak_bytes: Peak bytes of tensors above the resting model, by phase.
        phases: Batches of each of `planning.KINDS`, summed over seeds.
        counts: Layer updates applied per source, and fallbacks, summed over seeds.
        cosines: Per covered layer the running cosine after each epoch of the first seed.
        seeds: Each seed's result.
    """

    method: str
    summary: str
    steps: int
    score: float
    score_std: float | None
    train_seconds: float
    speedup: float | None
    batch_ms: dict[str, float]
    predictor_ms: dict[str, float]
    peak_bytes: dict[str, int]
    phases: dict[str, int]
    counts: dict[str, int]
    cosines: dict[str, list[float]]
    seeds: list[SeedResult]

    @property
    def diverged(self) -> int:
        """How many of its runs were given up because their loss was no longer a number."""
        return sum(seed.diverged is not None for seed in self.seeds)


@dataclass(frozen=True)
class Comparison:
    """The whole result, as `result.json` holds it.

    Attributes:
        protocol: In words.
        recipe: What all runs share.
        environment: What they ran on.
        calibration: What batches cost before they began.
        metrics: The task's figures; the first is what methods are judged by, the score.
        items: What the test items are.
        test_items: How many of them there are.
        methods: Each method's result.
        verdict: In words.
    """

    protocol: str
    recipe: dict[str, Any]
    environment: dict[str, Any]
    calibration: dict[str, Any]
    metrics: tuple[Metric, ...]
    items: str
    test_items: int
    methods: list[MethodResult]
    verdict: str

    @property
    def metric(self) -> Metric:
        """What the scores are."""
        return self.metrics[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `result.json`."""
        result: dict[str, Any] = strict(dataclasses.asdict(self))
        return result


def compare(
    settings: Settings,
    dataset: AnyDataSet,
    path: Path,
    *,
    device: torch.device,
    observer: Observer,
    interrupt: Interrupt,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Comparison:
    """Run the comparison in folder `path`, or go on with one that was interrupted.

    Raises:
        RunFolderError: When the folder holds another comparison, or this one and `resume` is not set.
        RecipeError: When the recipe does not fit the data or the model; nothing is written then.
        Interrupted: After saving, when a signal asked to stop.
    """
    with cpu_threads(settings.recipe.threads):
        if not _holds(settings, path, resume=resume):
            for name in settings.effective_methods:
                Run(settings.recipe.replace(method=name, seed=settings.seeds[0]), dataset, device=device)
            make_folder(path)
            write_file(path / "environment.json", describe(device, settings.recipe.threads))
            write_file(path / "compare.json", settings.to_dict())
        remove_leftovers(path)
        calibration = _calibration(settings, dataset, path, device=device, observer=observer, interrupt=interrupt)
        runs = _build_runs(settings, calibration, dataset, path, device)
        take_turns(runs, observer=observer, interrupt=interrupt, checkpoint_seconds=checkpoint_seconds)
    comparison = _conclude(settings, calibration, [run for run, _ in runs], path)
    write_file(path / "result.json", comparison.to_dict())
    return comparison


def stored_settings(path: Path) -> Settings:
    """The settings of the comparison in a folder.

    Raises:
        RunFolderError: When there is none, or it cannot be read.
    """
    values = read_file(path / "compare.json")
    try:
        return Settings(
            recipe=Recipe.from_mapping({**values["recipe"]}),
            methods=tuple(values["methods"]),
            seeds=tuple(values["seeds"]),
            budget_seconds=values["budget_seconds"],
        )
    except (KeyError, TypeError, RecipeError) as error:
        raise RunFolderError(
            f"'{path / 'compare.json'}' describes no comparison of this version of adagp ({error}): use the version "
            "that wrote it, or start in a new folder"
        ) from error


def run_lengths(settings: Settings, calibration: Calibration, steps_per_epoch: int) -> dict[str, int | None]:
    """Batches of each method's runs: None where the recipe's epochs decide. A pure function of the calibration."""
    lengths: dict[str, int | None] = {}
    for name in settings.effective_methods:
        recipe = settings.recipe.replace(method=name, steps=None)
        if settings.budget_seconds is not None:
            lengths[name] = steps_within(calibration, recipe, settings.budget_seconds, steps_per_epoch)
        elif name == "short-bp" and settings.short_reference is not None:
            reference = settings.recipe.replace(method=settings.short_reference)
            total = reference.steps or reference.epochs * steps_per_epoch
            time = expected_seconds(calibration, reference, total, steps_per_epoch)
            lengths[name] = steps_within(calibration, recipe, time, steps_per_epoch)
        else:
            lengths[name] = settings.recipe.steps
    return lengths


def _holds(settings: Settings, path: Path, *, resume: bool) -> bool:
    """Whether the folder holds this comparison already; refuses a folder that is in use otherwise."""
    if (path / "recipe.json").exists():
        raise RunFolderError(f"folder '{path}' holds a single run, not a comparison: choose another --out")
    if not (path / "compare.json").exists():
        return False
    if not resume:
        raise RunFolderError(
            f"folder '{path}' already holds a comparison: add --resume to continue it, or choose another --out"
        )
    stored = stored_settings(path)
    different = settings.recipe.differences(stored.recipe)
    for name in ("methods", "seeds", "budget_seconds"):
        mine, theirs = getattr(settings, name), getattr(stored, name)
        different += [f"{name} {mine!r} against {theirs!r}"] if mine != theirs else []
    if different:
        raise RunFolderError(
            f"folder '{path}' holds another comparison ({', '.join(different)}): resume with no options but "
            "--out, or with all it was begun with, or choose another --out"
        )
    return True


def _calibration(
    settings: Settings,
    dataset: AnyDataSet,
    path: Path,
    *,
    device: torch.device,
    observer: Observer,
    interrupt: Interrupt,
) -> Calibration:
    stored = path / "calibration.json"
    if stored.exists():
        try:
            return Calibration.from_dict(read_file(stored), settings.effective_methods)
        except ValueError as error:
            raise RunFolderError(
                f"'{stored}' holds no measurement of this comparison ({error}): remove the file, to measure again"
            ) from error
    calibration = calibrate(
        settings.recipe.replace(seed=settings.seeds[0], steps=None),
        settings.effective_methods,
        dataset,
        device=device,
        observer=observer,
        interrupt=interrupt,
    )
    write_file(stored, calibration.to_dict())
    return calibration


def _build_runs(
    settings: Settings, calibration: Calibration, dataset: AnyDataSet, path: Path, device: torch.device
) -> list[tuple[Run, RunFolder]]:
    lengths = run_lengths(settings, calibration, steps_per_epoch(settings.recipe, dataset))
    runs = []
    for seed in settings.seeds:
        for name in settings.effective_methods:
            recipe = settings.recipe.replace(method=name, seed=seed, steps=lengths[name])
            folder = RunFolder(path / f"{name}-seed{seed}")
            run = Run(recipe, dataset, device=device)
            folder.prepare(run, resume=True)
            folder.restore(run)
            runs.append((run, folder))
    return runs


def _conclude(settings: Settings, calibration: Calibration, runs: Sequence[Run], path: Path) -> Comparison:
    by_method = {name: [run for run in runs if run.recipe.method == name] for name in settings.effective_methods}
    outcomes = {name: _outcome(name, of_method) for name, of_method in by_method.items()}
    results = [
        _method_result(outcomes[name], outcomes.get("bp"), of_method, calibration.peak_bytes[name])
        for name, of_method in by_method.items()
    ]
    return Comparison(
        protocol=settings.protocol,
        recipe=settings.recipe.to_dict(),
        environment=read_file(path / "environment.json"),
        calibration=calibration.to_dict(),
        metrics=runs[0].task.metrics,
        items=runs[0].task.items,
        test_items=runs[0].task.test_items,
        methods=results,
        verdict=verdict(list(outcomes.values()), equal_time=settings.budget_seconds is not None),
    )


def _outcome(name: str, runs: Sequence[Run]) -> Outcome:
    return Outcome(
        method=name,
        metric=runs[0].metric,
        scores=tuple(run.scores[-1] for run in runs),
        seconds=fmean(run.train_seconds for run in runs),
        test_items=runs[0].task.test_items,
        diverged=sum(run.diverged is not None for run in runs),
    )


def _method_result(outcome: Outcome, bp: Outcome | None, runs: Sequence[Run], peaks: dict[str, int]) -> MethodResult:
    method = methods.get(outcome.method)
    return MethodResult(
        method=method.name,
        summary=method.summary_with(runs[0].recipe.predictor),
        steps=runs[0].total_steps,
        score=outcome.mean,
        score_std=outcome.spread,
        train_seconds=outcome.seconds,
        speedup=None if bp is None else speedup(outcome, bp),
        batch_ms=_pooled_ms([run.batch_seconds for run in runs]),
        predictor_ms=_pooled_ms([run.predictor_batch_seconds for run in runs]) if method.predictor is not None else {},
        peak_bytes=peaks,
        phases=_summed([record.phases for run in runs for record in run.records]),
        counts=_summed([run.records[-1].counts for run in runs]),
        cosines=_cosines(runs[0]),
        seeds=[_seed_result(run) for run in runs],
    )


def _seed_result(run: Run) -> SeedResult:
    last = run.records[-1]
    return SeedResult(
        seed=run.recipe.seed,
        score=run.scores[-1],
        best_score=max(run.scores),
        metrics=last.metrics,
        test_loss=last.test_loss,
        train_seconds=run.train_seconds,
        epochs=[record.step / run.steps_per_epoch for record in run.records],
        scores=run.scores,
        seconds=[record.train_seconds for record in run.records],
        diverged=run.diverged,
        reasons=[reason for record in run.records for reason in record.reasons],
    )


def _pooled_ms(times: Sequence[dict[str, list[float]]]) -> dict[str, float]:
    """Medians over all seeds; warm-up batches do the same work as BP batches and count with them."""
    pooled = {
        "BP": [value for run in times for kind in ("WARMUP", "BP") for value in run[kind]],
        "MIXED": [value for run in times for value in run["MIXED"]],
        "GP": [value for run in times for value in run["GP"]],
    }
    return {kind: 1e3 * median(values) for kind, values in pooled.items() if values}


def _summed(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total


def _cosines(run: Run) -> dict[str, list[float]]:
    layers = run.records[-1].quality
    missing = {"cosine": float("nan")}
    return {layer: [record.quality.get(layer, missing)["cosine"] for record in run.records] for layer in layers}
