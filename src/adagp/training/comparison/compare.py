"""Several methods over several seeds under one protocol, interleaved so that all meet the same machine."""

from pathlib import Path

import torch

from adagp.data import AnyDataSet
from adagp.extras import require
from adagp.files import remove_leftovers
from adagp.measure import cpu_threads
from adagp.training.comparison.calibrate import Calibration, calibrate, expected_seconds, steps_within
from adagp.training.comparison.conclude import conclude
from adagp.training.comparison.interleave import interleave
from adagp.training.comparison.result import Comparison
from adagp.training.comparison.settings import Settings, stored_settings
from adagp.training.environment import describe
from adagp.training.errors import RunFolderError
from adagp.training.run.folder import RunFolder, make_folder, read_file, write_file
from adagp.training.run.run import Run, steps_per_epoch
from adagp.training.run.session import Session


def compare(
    settings: Settings,
    dataset: AnyDataSet,
    path: Path,
    *,
    device: torch.device,
    session: Session | None = None,
    resume: bool = False,
) -> Comparison:
    """Run the comparison in folder `path`, or continue one that was interrupted.

    Raises:
        ModuleNotFoundError: When SciPy, which judges several seeds, is not installed.
        RunFolderError: When the folder holds another comparison, or this one and `resume` is not set.
        RecipeError: When the recipe does not fit the data or the model; nothing is written then.
        Interrupted: After saving, when a signal asked to stop.
    """
    session = session or Session()
    if len(settings.seeds) > 1:
        require("scipy")
    with cpu_threads(settings.recipe.threads):
        if not _holds(settings, path, resume=resume):
            for name in settings.effective_methods:
                Run(settings.recipe.replace(method=name, seed=settings.seeds[0]), dataset, device=device)
            make_folder(path)
            write_file(path / "environment.json", describe(device, settings.recipe.threads))
            write_file(path / "compare.json", settings.to_dict())
        remove_leftovers(path)
        calibration = _calibration(settings, dataset, path, device, session)
        runs = _build_runs(settings, calibration, dataset, path, device)
        interleave(runs, session)
    comparison = conclude(settings, calibration, [run for run, _ in runs], read_file(path / "environment.json"))
    write_file(path / "result.json", comparison.to_dict())
    return comparison


def run_lengths(settings: Settings, calibration: Calibration, steps_per_epoch: int) -> dict[str, int | None]:
    """Batches in each method's runs; None where the recipe's epochs decide. A pure function of the calibration."""
    lengths: dict[str, int | None] = {}
    for name in settings.effective_methods:
        recipe = settings.recipe.replace(method=name, steps=None)
        if settings.budget_seconds is not None:
            lengths[name] = steps_within(calibration, recipe, settings.budget_seconds, steps_per_epoch)
        elif name == "short-bp":
            time = _slowest_seconds(settings, calibration, steps_per_epoch)
            lengths[name] = steps_within(calibration, recipe, time, steps_per_epoch)
        else:
            lengths[name] = settings.recipe.steps
    return lengths


def _slowest_seconds(settings: Settings, calibration: Calibration, steps_per_epoch: int) -> float:
    """The time of the slowest method judged, so that none is held against a rival that had less time than itself."""
    total = settings.recipe.steps or settings.recipe.epochs * steps_per_epoch
    judged = (settings.recipe.replace(method=name) for name in settings.judged)
    return max(expected_seconds(calibration, recipe, total, steps_per_epoch) for recipe in judged)


def _holds(settings: Settings, path: Path, *, resume: bool) -> bool:
    """Whether the folder already holds this comparison; refuses a folder that holds something else."""
    if (path / "recipe.json").exists():
        raise RunFolderError(f"folder '{path}' holds a single run, not a comparison: choose another --out")
    if not (path / "compare.json").exists():
        return False
    if not resume:
        raise RunFolderError(
            f"folder '{path}' already holds a comparison: add --resume to continue it, or choose another --out"
        )
    different = settings.differences(stored_settings(path))
    if different:
        raise RunFolderError(
            f"folder '{path}' holds another comparison ({', '.join(different)}): resume with no options but "
            "--out, or with all it was started with, or choose another --out"
        )
    return True


def _calibration(
    settings: Settings, dataset: AnyDataSet, path: Path, device: torch.device, session: Session
) -> Calibration:
    stored = path / "calibration.json"
    if stored.exists():
        try:
            return Calibration.from_dict(read_file(stored), settings.effective_methods)
        except ValueError as error:
            raise RunFolderError(
                f"'{stored}' holds no measurement of this comparison ({error}): remove the file to measure again"
            ) from error
    recipe = settings.recipe.replace(seed=settings.seeds[0], steps=None)
    calibration = calibrate(recipe, settings.effective_methods, dataset, device, session)
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
