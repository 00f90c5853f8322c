"""The folder of one run: what it is made of, what came out, and how to go on.

`recipe.json`, `environment.json` and what the task keeps (vocabularies) are written first; `checkpoint.pt`,
`metrics.json` and `quality.json` are replaced as the run goes; `result.json` and `model.pt` (plain weights) appear when
it is finished, `diverged.json` where it stopped because a number was not finite.
"""

import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import torch

from adagp.files import parse_json, read_text, remove_leftovers, write_bytes, write_json
from adagp.training import checkpoint
from adagp.training.defaults import CHECKPOINT_SECONDS
from adagp.training.environment import cpu_threads, describe
from adagp.training.errors import CheckpointError, DivergedError, RecipeError, RunFolderError
from adagp.training.interrupt import Interrupt
from adagp.training.lock import FolderLock, lock
from adagp.training.loop import Run
from adagp.training.observers import Observer
from adagp.training.recipe import Recipe

_DIVERGED = "diverged.json"


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        """`path` may not exist yet."""
        self.path = path
        self._lock: FolderLock | None = None

    @property
    def checkpoint_path(self) -> Path:
        """Where the checkpoint is or will be."""
        return self.path / "checkpoint.pt"

    def prepare(self, run: Run, *, resume: bool) -> None:
        """Make the folder for a new run, or check that it holds this one; no other process may then use it.

        Raises:
            RunFolderError: When the folder holds a run and `resume` is not set, or holds another recipe, or is in use.
        """
        run.team.lead(lambda: self._prepare(run, resume=resume))

    def _prepare(self, run: Run, *, resume: bool) -> None:
        make_folder(self.path)
        self._lock = lock(self.path)
        remove_leftovers(self.path)
        if self.holds_run():
            if not resume:
                raise RunFolderError(
                    f"folder '{self.path}' already holds a run: add --resume to continue it, or choose another --out"
                )
            stored = self.recipe()
            if stored != run.recipe:
                differences = ", ".join(run.recipe.differences(stored))
                raise RunFolderError(
                    f"folder '{self.path}' holds a run with another recipe ({differences}): "
                    "resume with no options but --out, or with all it was begun with, or choose another --out"
                )
            run.task.keep(self.path)
            return
        write_file(self.path / "environment.json", describe(run.device, run.recipe.threads))
        run.task.keep(self.path)
        write_file(self.path / "recipe.json", run.recipe.to_dict())

    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "recipe.json").exists()

    def recipe(self) -> Recipe:
        """The recipe of the run here.

        Raises:
            RunFolderError: When there is none, or it cannot be read.
        """
        path = self.path / "recipe.json"
        values = read_file(path)
        try:
            return Recipe.from_mapping(values)
        except RecipeError as error:
            raise RunFolderError(
                f"'{path}' holds no recipe of this version of adagp ({error}): use the version that wrote it, or start "
                "in a new folder"
            ) from error

    def restore(self, run: Run) -> bool:
        """Bring `run` to where its checkpoint is; False when it has none yet.

        A run that is finished there gets its other files again: it may have been killed before they were written.

        Raises:
            CheckpointError: When the checkpoint is damaged or of another run.
        """
        if not self.checkpoint_path.exists():
            return False
        try:
            run.load_state_dict(checkpoint.load(self.checkpoint_path, run.device))
        except CheckpointError as error:
            raise CheckpointError(f"'{self.path}' cannot be resumed: {error}") from error
        if run.finished and run.team.leads:
            self._write_results(run)
        return True

    def save(self, run: Run) -> None:
        """Save where `run` is, the checkpoint first: the other files can be made from it again.

        All ranks of a team are at the same place with the same weights, so the first one's are enough.
        """
        if run.team.leads:
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
            torch.save(run.model.state_dict(), weights)
            write_file(self.path / "model.pt", weights.getvalue())
            write_file(self.path / "result.json", summarise(run))

    def mark_diverged(self, run: Run, reason: str) -> None:
        """Note that the run left the finite numbers; its checkpoint stays the last good one."""
        if run.team.leads:
            write_file(self.path / _DIVERGED, {"batch": run.step_index, "reason": reason})

    def diverged(self) -> str | None:
        """Why the run here stopped as diverged, if it did."""
        path = self.path / _DIVERGED
        return str(read_file(path).get("reason")) if path.exists() else None


def train_epoch(
    run: Run,
    folder: RunFolder,
    *,
    observer: Observer,
    interrupt: Interrupt,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train to the end of the epoch under way, saving at least every `checkpoint_seconds` and at the end.

    Raises:
        Interrupted: After saving, when a signal asked to stop.
        DivergedError: When the loss is no longer a number; the last checkpoint stays.
    """
    saved = time.monotonic()
    while not run.epoch_complete:
        observer.on_batch(run, run.step())
        asked = interrupt.agree(run.team)
        if asked or time.monotonic() - saved >= checkpoint_seconds:
            folder.save(run)
            saved = time.monotonic()
        if asked:
            interrupt.check()
    record = run.finish_epoch()
    folder.save(run)
    observer.on_epoch(run, record)
    if interrupt.agree(run.team):
        interrupt.check()


def train(
    run: Run,
    folder: RunFolder,
    *,
    observer: Observer,
    interrupt: Interrupt,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> dict[str, Any]:
    """Train `run` to its end with its recipe's threads and return the content of `result.json`; see `train_epoch`."""
    observer.on_start([run])
    try:
        with cpu_threads(run.recipe.threads):
            while not run.finished:
                train_epoch(run, folder, observer=observer, interrupt=interrupt, checkpoint_seconds=checkpoint_seconds)
    except DivergedError as error:
        folder.mark_diverged(run, str(error))
        raise
    return summarise(run)


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
        f"best_test_{run.metric.name}": max(run.scores),
        "scores": run.scores,
        "train_seconds": run.train_seconds,
        "seconds": {phase: sum(record.seconds[phase] for record in run.records) for phase in last.seconds},
        "predictor_seconds": sum(record.predictor_seconds for record in run.records),
        "phases": {phase: sum(record.phases[phase] for record in run.records) for phase in last.phases},
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
    """Write bytes as they are and anything else as JSON, atomically.

    Raises:
        RunFolderError: When the file cannot be written; its previous content stays.
    """
    try:
        if isinstance(content, bytes):
            write_bytes(path, content)
        else:
            write_json(path, content)
    except OSError as error:
        raise RunFolderError(
            f"'{path}' cannot be written: {error.strerror or error}; nothing saved before is lost. Free some space or "
            "check the permissions, then resume"
        ) from error


def read_file(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run folder.

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
        raise RunFolderError(f"'{path}' holds no JSON object: restore it, or start in a new folder")
    return value
