"""One training run that can be advanced batch by batch, saved, and continued bit for bit."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

from adagp.data import AnyDataSet
from adagp.measure import clock, peak_bytes
from adagp.schedules import Schedule
from adagp.training import methods, rivals, tasks
from adagp.training.batch_kinds import BATCH_KINDS, batch_kind
from adagp.training.errors import CheckpointError, DivergedError, RecipeError
from adagp.training.planning import build_schedule
from adagp.training.recipe import Recipe
from adagp.training.rivals.rival import TrainingBatch
from adagp.training.run.build import attach, build_optimizer, load_weights
from adagp.training.run.consistency import contradiction, other_recipe
from adagp.training.run.error_context import error_context
from adagp.training.run.feed import BatchFeed
from adagp.training.run.learning_rate import LearningRate
from adagp.training.run.observers import BatchEvent
from adagp.training.run.randomness import RandomState
from adagp.training.run.records import EpochRecord, EpochTally
from adagp.training.run.state import fault, optimizer_fault, rows_fault
from adagp.training.run.world import World
from adagp.training.tasks import Evaluation, Metric, Task
from adagp.training.tasks.task import LocalTask

_QUALITY = ("cosine", "norm_ratio", "mse", "mape", "trust", "batches")


class Run:
    """Model, optimizer, learning rate, `AdaGP` and data of one recipe, and how far they have come.

    The initial weights depend on model and seed alone, so methods compared under one seed start from the same point.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: AnyDataSet,
        *,
        device: torch.device | None = None,
        schedule: Schedule | None = None,
        label: str | None = None,
        world: World | None = None,
        progress: float | None = None,
    ) -> None:
        """Build everything; nothing is trained yet.

        Args:
            recipe: What to train and how.
            dataset: The recipe's data, loaded once and shared between runs.
            device: Where to train (default: the CPU).
            schedule: Replaces the method's own schedule, for calibration.
            label: The run's name in messages (default: its method and seed).
            world: The ranks that share every batch (default: this process alone).
            progress: The part of the run that rivals are to take as done in every batch, for calibration.

        Raises:
            RecipeError: When the data does not fill one batch, or the recipe's layers are not in the model.
        """
        self.recipe = recipe
        self.name = label or f"{recipe.method} seed {recipe.seed}"
        self.device = device or torch.device("cpu")
        self.world = world or World()
        self.world.check_batch_size(recipe.batch_size)
        self._refuse_ranks()
        self.ranks = self.world.size
        """The number of ranks that trained it last."""
        self._clock = clock(self.device)
        self._rival, self._progress = rivals.build(recipe), progress
        self.task = build_task(recipe, dataset)
        self.steps_per_epoch = self.task.steps_per_epoch
        self.total_steps = recipe.steps or recipe.epochs * self.steps_per_epoch
        self.total_epochs = math.ceil(self.total_steps / self.steps_per_epoch)
        self.ladder = recipe.ladder(self.total_steps, self.steps_per_epoch)
        self._random = RandomState(recipe.seed, self.device)
        with self._random, error_context(self.name, recipe):
            self._build_network(schedule)
        self._lr = LearningRate(recipe, self.optimizer, self.total_steps)
        self._feed = BatchFeed(self.task.epoch, self._scale)
        self._tally = EpochTally()
        self.records: list[EpochRecord] = []
        self.diverged: str | None = None
        self.train_seconds = 0.0
        self.batch_seconds: dict[str, list[float]] = {kind: [] for kind in BATCH_KINDS}
        self.predictor_batch_seconds: dict[str, list[float]] = {kind: [] for kind in BATCH_KINDS}

    def _refuse_ranks(self) -> None:
        """Rivals know one process: what they remember of samples is not shared."""
        if self.world.size > 1 and type(rivals.build(self.recipe)) is not rivals.Rival:
            raise RecipeError(f"method {self.recipe.method} trains in one process: start it without torchrun")

    def _build_network(self, schedule: Schedule | None) -> None:
        recipe = self.recipe
        # Off the CPU, each reading of the clock would make the device wait.
        timer = self._clock if self.device.type == "cpu" else None
        try:
            self.model = self.task.build_model().to(self.device)
            if recipe.weights is not None:
                load_weights(self.model, recipe.weights)
            self.optimizer = build_optimizer(recipe, self.model)
            self.schedule = schedule or build_schedule(recipe, self.model, self.total_steps, self.steps_per_epoch)
            self.task.check_scales(self.model, self.schedule.scales)
            self._network = self.world.wrap(self.model, methods.get(recipe.method).planning)
            self.gp = attach(recipe, self._network, self.optimizer, self.schedule, timer, self.task)
            self._rival.begin(self.task, self.model, recipe.seed, self.total_steps)
        except ValueError as error:
            raise RecipeError(str(error)) from error

    @property
    def metric(self) -> Metric:
        """The metric that methods are judged by."""
        return self.task.metrics[0]

    @property
    def scores(self) -> list[float]:
        """The value of `metric` after each epoch."""
        return [record.metrics[self.metric.name] for record in self.records]

    @property
    def step_index(self) -> int:
        """Batches done."""
        return self.gp.step_index

    @property
    def epoch_complete(self) -> bool:
        """Whether the current epoch lacks only its evaluation."""
        return self.step_index >= min((len(self.records) + 1) * self.steps_per_epoch, self.total_steps)

    @property
    def finished(self) -> bool:
        """Whether every epoch is done and evaluated, or the run was given up as diverged."""
        return len(self.records) >= self.total_epochs or self.diverged is not None

    def step(self) -> BatchEvent:
        """Train one batch.

        Raises:
            DivergedError: When the loss or a gradient is NaN or infinite; nothing was updated.
            TrainingError: When the engine or PyTorch refuses, for example because memory runs out.
        """
        step = self.step_index
        plan = self.gp.next_plan()
        kind = batch_kind(plan)
        self._lr.before_batch(step)
        predictor_before = self.gp.predictor_seconds
        epoch, index = divmod(step, self.steps_per_epoch)
        progress = step / self.total_steps if self._progress is None else self._progress

        def own(scale: float) -> tuple[Any, float]:
            batch, remaining = self._feed.batch(epoch, index, scale)
            return self.task.share(batch, self.world.rank, self.world.size), remaining

        def closure(scale: float) -> Tensor:
            batch, remaining = own(scale)
            return self._rival.loss(
                TrainingBatch(self.task, self._network, batch, self.device, remaining, epoch, index, progress)
            )

        with self._random:
            self.world.seed_batch(self.recipe.seed, step)
            begin = self._clock()
            with error_context(f"{self.name}, epoch {epoch + 1}, batch {index + 1}", self.recipe):
                self._rival.before_batch(self.model, progress)
                target = None
                if "local" in plan.used_sources() and isinstance(self.task, LocalTask):
                    target = self.task.target(own(1.0)[0], self.device)
                loss_tensor = self.gp.step(closure, target=target)
                self._rival.after_batch(self.model)
                loss = None if loss_tensor is None else self.world.mean(float(loss_tensor))
            seconds = self._clock() - begin
        self._count(kind, seconds, self.gp.predictor_seconds - predictor_before, loss)
        return BatchEvent(step=step, kind=kind, note=plan.note, loss=loss, seconds=seconds)

    def _scale(self, epoch: int, index: int) -> float:
        """The scale of a batch, as the schedule sees it now."""
        return self.schedule(epoch * self.steps_per_epoch + index).scale

    def finish_epoch(self) -> EpochRecord:
        """Evaluate the model and close the current epoch.

        Raises:
            DivergedError: When the test loss is NaN or infinite, unless the run was given up already.
        """
        evaluation = self.evaluate()
        if self.diverged is None and not math.isfinite(evaluation.loss):
            raise DivergedError(
                f"{self.name}, epoch {len(self.records) + 1}: the test loss is {evaluation.loss}: lower the learning "
                "rate, or resume from the last checkpoint"
            )
        tally = self._tally
        record = EpochRecord(
            epoch=len(self.records) + 1,
            step=self.step_index,
            train_loss=tally.train_loss,
            test_loss=evaluation.loss,
            metrics=evaluation.metrics,
            lr=self._lr.current,
            batches=tally.batches,
            seconds=tally.seconds,
            predictor_seconds=tally.predictor_seconds,
            train_seconds=self.train_seconds,
            counts=dict(self.gp.counts()),
            quality=self._quality(),
            reasons=self._new_reasons(),
        )
        self._lr.after_epoch(evaluation.loss)
        self.records.append(record)
        self._tally = EpochTally()
        return record

    def give_up(self, reason: str) -> EpochRecord:
        """Close a run that diverged, with the figures of its last weights."""
        self.diverged = reason
        return self.finish_epoch()

    def peak_bytes(self) -> int:
        """Train one batch and return its peak memory above the resting model.

        The batch advances the run like any other, only slower: measure on a run built for it.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self._feed.forget()
        return peak_bytes(self.step, self.device)

    def evaluate(self) -> Evaluation:
        """Loss and metrics over the test items, computed by the main rank; changes nothing in the run."""
        return self.world.on_main(self._evaluate)

    def _evaluate(self) -> Evaluation:
        last = self.step_index >= self.total_steps or self.diverged is not None
        self.model.eval()
        with torch.no_grad(), self._random, error_context(f"{self.name}, evaluation", self.recipe), self._judged():
            evaluation = self.task.evaluate(self.model, self.device, last=last)
        self.model.train()
        return evaluation

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """The weights that count are those of the model inside."""
        counting = self._rival.weights(self.model)
        if counting is None:
            yield
            return
        trained = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(counting)
        yield
        self.model.load_state_dict(trained)

    def weights(self) -> dict[str, Tensor]:
        """The weights that are evaluated and kept: those of the model, or what its method makes of them."""
        own: dict[str, Tensor] = self.model.state_dict()
        return self._rival.weights(self.model) or own

    def median_ms(self) -> dict[str, float]:
        """Median milliseconds of a batch, for each kind that occurred."""
        return {kind: 1e3 * median(times) for kind, times in self.batch_seconds.items() if times}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit: tensors and plain values only."""
        rival = self._rival.state_dict()
        return {
            **({"rival": rival} if rival else {}),
            "recipe": self.recipe.to_dict(),
            "digest": self.recipe.digest(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "plateau": self._lr.state_dict(),
            "gp": self.gp.state_dict(),
            "random": self._random.state_dict(),
            "tally": dataclasses.asdict(self._tally),
            "records": [dataclasses.asdict(record) for record in self.records],
            "diverged": self.diverged,
            "ranks": self.ranks,
            "train_seconds": self.train_seconds,
            "batch_seconds": _as_tensors(self.batch_seconds),
            "predictor_batch_seconds": _as_tensors(self.predictor_batch_seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: When the state belongs to another recipe or model. The run must not be used then.
        """
        if state.get("digest") != self.recipe.digest():
            raise CheckpointError(other_recipe(self.recipe, state))
        if problem := self._problem(state):
            raise self._does_not_fit(problem)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.gp.load_state_dict(state["gp"])
            self._lr.load_state_dict(state["plateau"])
            self._random.load_state_dict({"states": [part.cpu() for part in state["random"]["states"]]})
            self._rival.load_state_dict(state.get("rival", {}))
            self._tally = EpochTally(**state["tally"])
            self.records = [EpochRecord(**record) for record in state["records"]]
            self.diverged = state["diverged"]
            self.ranks = state["ranks"] if self.finished else self.world.size
            self.train_seconds = float(state["train_seconds"])
            self.batch_seconds = _as_lists(state["batch_seconds"])
            self.predictor_batch_seconds = _as_lists(state["predictor_batch_seconds"])
            with self._random:
                pass  # the generators refuse an invalid state
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            raise self._does_not_fit(str(error).strip().partition("\n")[0]) from error

    def _problem(self, state: dict[str, Any]) -> str | None:
        """Why this run cannot continue from a state; None if it can. Each check relies on those before it."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return (
            fault(state, self.state_dict(), own=self._own_places())
            or contradiction(
                state, total_steps=self.total_steps, total_epochs=self.total_epochs, metric=self.metric.name
            )
            or optimizer_fault(state["optimizer"], parameters, "optimizer")
            or rows_fault(state["gp"], state["gp"]["layers"], "gp")
        )

    def _does_not_fit(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint does not fit this run ({self.name}): {reason}; restore the file from a copy, or start the "
            "run again in a new folder"
        )

    def _count(self, kind: str, seconds: float, predictor_seconds: float, loss: float | None) -> None:
        self.train_seconds += seconds
        self._tally.add(kind, seconds, predictor_seconds, loss)
        self.batch_seconds[kind].append(seconds)
        self.predictor_batch_seconds[kind].append(predictor_seconds)

    def _quality(self) -> dict[str, dict[str, float]]:
        return {
            layer: {figure: float(getattr(measured, figure)) for figure in _QUALITY}
            for layer, measured in self.gp.quality().items()
        }

    def _own_places(self) -> set[str]:
        """Where a state holds what classes outside of this package keep: sources and predictors of the user."""
        parts = {f"gp.sources.{name}": source for name, source in self.gp.sources.items()}
        every: dict[str, object] = {**parts, "gp.predictor": self.gp.predictor}
        return {
            place
            for place, part in every.items()
            if part is not None and type(part).__module__.partition(".")[0] != "adagp"
        }

    def _new_reasons(self) -> list[str]:
        """The schedule's reasons that no record holds yet. Each names its step, so none repeats."""
        known = {reason for record in self.records for reason in record.reasons}
        return [reason for reason in self.schedule.explain() if reason not in known]


def steps_per_epoch(recipe: Recipe, dataset: AnyDataSet) -> int:
    """Batches in an epoch of a run.

    Raises:
        RecipeError: When the data does not fill one batch.
    """
    return build_task(recipe, dataset).steps_per_epoch


def build_task(recipe: Recipe, dataset: AnyDataSet) -> Task:
    """The task of a recipe, as its method wants it.

    Raises:
        RecipeError: When the recipe does not fit the data.
    """
    rival = rivals.build(recipe)
    return tasks.build(rival.recipe(recipe), rival.dataset(recipe, dataset))


def _as_tensors(times: dict[str, list[float]]) -> dict[str, Tensor]:
    return {kind: torch.tensor(values, dtype=torch.float64) for kind, values in times.items()}


def _as_lists(times: dict[str, Tensor]) -> dict[str, list[float]]:
    return {kind: values.tolist() for kind, values in times.items()}
