"""Trains what a comparison still lacks. Every run is a locked folder, so several processes can share the work."""

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from adagp.data import AnyDataSet
from adagp.data.validation import Validated, validated
from adagp.extras import require
from adagp.files import remove_leftovers
from adagp.measure import cpu_threads
from adagp.training.budget.outcome import best_candidates, fix_target, is_finished
from adagp.training.budget.parts import PRETRAINED, Part, candidates, cost_label, parts
from adagp.training.budget.reference import Reference, complete_reference
from adagp.training.budget.settings import PLAIN, BudgetSettings, holds, store, stored
from adagp.training.comparison.interleave import interleave
from adagp.training.environment import describe
from adagp.training.errors import FolderInUseError, RecipeError, RunFolderError
from adagp.training.recipe import Recipe
from adagp.training.run.folder import RunFolder, make_folder, write_file
from adagp.training.run.lock import lock, waiting_lock
from adagp.training.run.run import Run
from adagp.training.run.session import Session

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 7 * 86_400.0

Load = Callable[[str], AnyDataSet]
"""Loads a data set by name."""


def work(
    settings: BudgetSettings,
    path: Path,
    load: Load,
    *,
    device: torch.device,
    session: Session | None = None,
    resume: bool = False,
) -> None:
    """Train every run of the comparison in folder `path` that is neither finished nor under way in another process.

    Returns when all are finished. Methods and seeds that the folder does not have yet are added to it; what it has is
    not run again.

    Raises:
        ModuleNotFoundError: When SciPy, which judges several seeds, is not installed.
        RunFolderError: When the folder holds another comparison, or this one and `resume` is not set.
        RecipeError: When the recipe does not fit the data or the model; nothing is written then.
        Interrupted: After saving, when a signal asked to stop.
    """
    require("scipy")
    if holds(path) and not resume:
        raise RunFolderError(
            f"folder '{path}' already holds a comparison: add --resume to continue it or add to it, or choose another "
            "--out"
        )
    Worker(settings, path, load, device, session or Session()).run()


class Worker:
    """One process at work on a comparison."""

    def __init__(
        self, settings: BudgetSettings, path: Path, load: Load, device: torch.device, session: Session
    ) -> None:
        """Nothing is loaded or written yet."""
        self._settings, self._path, self._load = settings, path, load
        self._device, self._session = device, session

    def run(self) -> None:
        """Work until nothing is left."""
        with cpu_threads(self._settings.recipe.threads):
            self._check()
            make_folder(self._path)
            remove_leftovers(self._path)
            self._settings = store(self._settings, self._path)
            if not (self._path / "environment.json").exists():
                write_file(self._path / "environment.json", describe(self._device, self._settings.recipe.threads))
            self._pretrain()
            while self._advance():
                self._session.interrupt.check()

    def _check(self) -> None:
        """Build every method once, so that a recipe that does not fit is refused before anything is written."""
        for name in self._settings.methods:
            Run(self._settings.recipe.replace(method=name), self._data.choosing, device=self._device)

    @cached_property
    def _data(self) -> Validated:
        try:
            return validated(self._load(self._settings.recipe.data), self._settings.options.validation)
        except ValueError as error:
            raise RecipeError(str(error)) from error

    @property
    def _weights(self) -> Path | None:
        return self._path / PRETRAINED / "model.pt" if self._settings.options.pretrain else None

    def _pretrain(self) -> None:
        recipe = self._settings.options.pretraining(self._settings.recipe)
        folder = self._path / PRETRAINED
        if recipe is None or is_finished(folder):
            return
        make_folder(folder)
        held = waiting_lock(folder, _PATIENCE_SECONDS)
        if not is_finished(folder):
            self._session.observer.on_message(f"training the weights that all runs start from, on {recipe.data}")
            self._train(Run(recipe, self._load(recipe.data), device=self._device, label="pretraining"), folder)
        held.release()

    def _advance(self) -> bool:
        """Train one free part; wait where others are at work; False when all are finished."""
        # Another process may have added methods or seeds.
        settings = self._settings = stored(self._path)
        reference = self._reference(settings)
        chosen = best_candidates(settings, reference, self._path)
        fix_target(settings, reference, self._path, chosen[PLAIN])
        waiting = None in chosen.values()
        for part in parts(settings, chosen):
            folder = self._path / part.folder
            if is_finished(folder):
                continue
            waiting = True
            make_folder(folder)
            try:
                held = lock(folder)
            except FolderInUseError:
                continue
            if not is_finished(folder):  # it may have been finished between the two looks
                self._run_part(part, part.recipe(settings, reference, self._weights), folder)
            held.release()
            return True
        if waiting:
            time.sleep(_POLL_SECONDS)
        return waiting

    def _reference(self, settings: BudgetSettings) -> Reference:
        recipes = {}
        for name in settings.methods:
            for candidate in candidates(settings, name):
                recipes[candidate.cost] = settings.recipe.replace(method=name, batch_size=candidate.batch_size)
        plain = cost_label(PLAIN, settings.recipe.batch_size)
        recipes.setdefault(plain, settings.recipe.replace(method=PLAIN))
        return complete_reference(
            recipes, plain, self._data.judging, self._path, device=self._device, session=self._session
        )

    def _run_part(self, part: Part, recipe: Recipe, folder: Path) -> None:
        dataset = self._data.choosing if part.chooses else self._data.judging
        self._train(Run(recipe, dataset, device=self._device, label=part.folder.partition("/")[2]), folder)

    def _train(self, run: Run, path: Path) -> None:
        folder = RunFolder(path)
        folder.prepare(run, resume=True)
        folder.restore(run)
        interleave([(run, folder)], self._session)
