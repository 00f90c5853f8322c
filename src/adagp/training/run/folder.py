"""The folder of one run.

`recipe.json`, `environment.json` and the task's own files (vocabularies) are written first. `checkpoint.pt`,
`metrics.json` and `quality.json` are replaced as the run advances. `result.json` and `model.pt` (plain weights) appear
when it is finished, `diverged.json` when it stopped because a number was not finite.
"""

import dataclasses
import io
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock

from adagp.files import parse_json, read_text, remove_leftovers, write_bytes, write_json
from adagp.training.environment import describe
from adagp.training.errors import CheckpointError, RecipeError, RunFolderError
from adagp.training.recipe import Recipe
from adagp.training.run import checkpoint
from adagp.training.run.lock import lock
from adagp.training.run.run import Run

_DIVERGED = "diverged.json"


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist yet."""
        self.path = path
        self._lock: BaseFileLock | None = None

    @property
    def checkpoint_path(self) -> Path:
        """The path of the checkpoint, which may not exist yet."""
        return self.path / "checkpoint.pt"

    def prepare(self, run: Run, *, resume: bool) -> None:
        """Make the folder for a new run, or check that it holds this one, and lock it against other processes.

        Raises:
            RunFolderError: When the folder holds a run and `resume` is not set, or holds another recipe, or is in use.
        """
        run.world.on_main(lambda: self._prepare(run, resume=resume))

    def _prepare(self, run: Run, *, resume: bool) -> None:
        make_folder(self.path)
        self._lock = lock(self.path)
        remove_leftovers(self.path)
        if not resume:
            self.check_free()
        elif self.holds_run():
            stored = self.recipe()
            if stored != run.recipe:
                differences = ", ".join(run.recipe.differences(stored))
                raise RunFolderError(
                    f"folder '{self.path}' holds a run with another recipe ({differences}): "
                    "resume with no options but --out, or with all it was started with, or choose another --out"
                )
            run.task.keep(self.path)
            return
        write_file(self.path / "environment.json", describe(run.device, run.recipe.threads))
        run.task.keep(self.path)
        write_file(self.path / "recipe.json", run.recipe.to_dict())

    def check_free(self) -> None:
        """Refuse a folder that holds a run.

        Raises:
            RunFolderError: When it does.
        """
        if self.holds_run():
            raise RunFolderError(
                f"folder '{self.path}' already holds a run: add --resume to continue it, or choose another --out"
            )

    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "recipe.json").exists()

    def recipe(self) -> Recipe:
        """The recipe of the run here.

        Raises:
            RunFolderError: When the file is missing or not a recipe.
        """
        path = self.path / "recipe.json"
        values = read_file(path)
        try:
            return Recipe.from_mapping(values)
        except RecipeError as error:
            raise RunFolderError(
                f"'{path}' is not a recipe of this version of adagp ({error}): use the version that wrote it, or start "
                "in a new folder"
            ) from error

    def restore(self, run: Run) -> bool:
        """Load the checkpoint into `run`; False when there is none yet.

        A finished run gets its other files again: it may have been killed before they were written.

        Raises:
            CheckpointError: When the checkpoint is damaged or belongs to another run.
        """
        if not self.checkpoint_path.exists():
            return False
        try:
            run.load_state_dict(checkpoint.load(self.checkpoint_path, run.device))
        except CheckpointError as error:
            raise CheckpointError(f"'{self.path}' cannot be resumed: {error}") from error
        if run.finished and run.world.is_main:
            self._write_results(run)
        return True

    def save(self, run: Run) -> None:
        """Save the state of `run`, the checkpoint first: the other files can be rebuilt from it.

        All ranks hold the same state, so the main rank saves it.
        """
        if run.world.is_main:
            checkpoint.save(self.checkpoint_path, run.state_dict())
            self._write_results(run)

    def _write_results(self, run: Run) -> None:
        metrics = [dataclasses.asdict(record) for record in run.records]
        quality = [{"epoch": record["epoch"], "layers": record.pop("quality")} for record in metrics]
        write_file(self.path / "metrics.json", metrics)
        write_file(self.path / "quality.json", quality)
        (self.path / _DIVERGED).unlink(missing_ok=True)
        if run.finished:
            weights = io.BytesIO()
            torch.save(run.weights(), weights)
            write_file(self.path / "model.pt", weights.getvalue())
            write_file(self.path / "result.json", summarise(run))

    def mark_diverged(self, run: Run, reason: str) -> None:
        """Record that the run diverged; its checkpoint stays the last good one."""
        if run.world.is_main:
            write_file(self.path / _DIVERGED, {"batch": run.step_index, "reason": reason})

    def diverged(self) -> str | None:
        """Why the run here diverged; None if it did not."""
        path = self.path / _DIVERGED
        return str(read_file(path).get("reason")) if path.exists() else None


def summarise(run: Run) -> dict[str, Any]:
    """The figures of a finished run."""
    last = run.records[-1]
    return {
        "method": run.recipe.method,
        "seed": run.recipe.seed,
        "epochs": len(run.records),
        "steps": run.step_index,
        "metric": run.metric.name,
        **{f"test_{name}": value for name, value in last.metrics.items()},
        "test_loss": last.test_loss,
        f"best_test_{run.metric.name}": run.metric.best(run.scores),
        "scores": run.scores,
        "train_losses": [record.train_loss for record in run.records],
        "train_seconds": run.train_seconds,
        "seconds": {kind: sum(record.seconds[kind] for record in run.records) for kind in last.seconds},
        "predictor_seconds": sum(record.predictor_seconds for record in run.records),
        "batches": {kind: sum(record.batches[kind] for record in run.records) for kind in last.batches},
        "median_ms": run.median_ms(),
        "diverged": run.diverged,
        "counts": last.counts,
        "ranks": run.ranks,
        "quality": last.quality,
        "reasons": [reason for record in run.records for reason in record.reasons],
    }


def make_folder(path: Path) -> None:
    """Make a folder and its parents.

    Raises:
        RunFolderError: When it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"folder '{path}' cannot be made: {error.strerror or error}; choose another folder"
        ) from error


def write_file(path: Path, content: Any) -> None:
    """Write bytes as they are, and anything else as JSON, atomically.

    Raises:
        RunFolderError: When the file cannot be written; its previous content remains.
    """
    try:
        if isinstance(content, bytes):
            write_bytes(path, content)
        else:
            write_json(path, content)
    except OSError as error:
        raise RunFolderError(
            f"'{path}' cannot be written: {error.strerror or error}; files saved before are intact. Free some space or "
            "check the permissions, then resume"
        ) from error


def read_file(path: Path) -> dict[str, Any]:
    """Read a JSON object from a run folder.

    Raises:
        RunFolderError: When it is missing or not a JSON object.
    """
    try:
        value = parse_json(read_text(path))
    except OSError as error:
        raise RunFolderError(f"'{path}' cannot be read: {error.strerror or error}; is it a run folder?") from error
    except ValueError as error:
        raise RunFolderError(f"'{path}' is not valid JSON ({error}): restore it, or start in a new folder") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"'{path}' is not a JSON object: restore it, or start in a new folder")
    return value
