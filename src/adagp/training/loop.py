"""One training run that can be advanced batch by batch, saved, and continued bit for bit."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, distributed, nn

from adagp import AdaGP, NonFiniteError, schedules
from adagp.data import AnyDataSet
from adagp.schedules import Schedule
from adagp.sources import Random, Source, TopK
from adagp.training import lr, methods, tasks
from adagp.training.clock import clock
from adagp.training.errors import CheckpointError, DivergedError, RecipeError, TrainingError
from adagp.training.memory import peak_bytes
from adagp.training.observers import BatchEvent
from adagp.training.planning import KINDS, batch_kind, build_schedule
from adagp.training.randomness import RandomState
from adagp.training.recipe import Recipe
from adagp.training.state import fault, optimizer_fault, rows_fault
from adagp.training.tasks import Evaluation, Metric
from adagp.training.team import Team


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch gave.

    Attributes:
        epoch: From 1.
        step: Batches done in the run.
        train_loss: Mean over the epoch's batches with a true gradient; NaN where it had none.
        test_loss: Mean over the test items, outside of the clock.
        metrics: The task's figures by name, over the test items.
        lr: Learning rate of the epoch's last batch.
        phases: Batches of each of `planning.KINDS` in this epoch.
        seconds: Seconds of each of them: data, forward, gradients, predictor and optimizer.
        predictor_seconds: The predictor's share of them.
        train_seconds: Seconds in the run so far, all phases, without evaluation.
        counts: Layer updates applied per source in the run so far, and fallbacks.
        quality: Per covered layer the running figures of the predictions; empty without a predictor.
        reasons: Why an adaptive schedule changed its k:m in this epoch; empty for the others.
    """

    epoch: int
    step: int
    train_loss: float
    test_loss: float
    metrics: dict[str, float]
    lr: float
    phases: dict[str, int]
    seconds: dict[str, float]
    predictor_seconds: float
    train_seconds: float
    counts: dict[str, int]
    quality: dict[str, dict[str, float]]
    reasons: list[str] = field(default_factory=list)


@dataclass
class _Tally:
    """Sums over the epoch under way."""

    phases: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    predictor_seconds: float = 0.0
    loss_sum: float = 0.0
    loss_batches: int = 0


class Run:
    """Model, optimizer, learning rate, `AdaGP` and data of one recipe, and where they are.

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
        team: Team | None = None,
    ) -> None:
        """Build everything; nothing is trained yet.

        Args:
            recipe: What to train and how.
            dataset: The recipe's data, loaded once and shared between runs.
            device: Where to train (default: the CPU).
            schedule: Replaces the method's own schedule, for calibration.
            label: What people call the run; None: its method and seed.
            team: The processes that train it together (default: this one alone); each takes its share of every batch.

        Raises:
            RecipeError: When the data does not fill one batch, or the recipe's layers cannot be found in the model.
        """
        self.recipe = recipe
        self.name = label or f"{recipe.method} seed {recipe.seed}"
        self.device = device or torch.device("cpu")
        self.team = team or Team()
        self.team.check_batch_size(recipe.batch_size)
        self.ranks = self.team.count
        """How many processes trained it last."""
        self._clock = clock(self.device)
        self.task = tasks.build(recipe, dataset)
        self.steps_per_epoch = self.task.steps_per_epoch
        self.total_steps = recipe.steps or recipe.epochs * self.steps_per_epoch
        self.total_epochs = math.ceil(self.total_steps / self.steps_per_epoch)
        self.ladder = recipe.ladder(self.total_steps, self.steps_per_epoch)
        method = methods.get(recipe.method)
        self._random = RandomState(recipe.seed, self.device)
        with self._random, _explained(self.name, recipe):
            try:
                self.model = self.task.build_model().to(self.device)
                self.optimizer = _build_optimizer(recipe, self.model)
                self.schedule = schedule or build_schedule(recipe, self.model, self.total_steps, self.steps_per_epoch)
                predicts = "predicted" in self.schedule.sources
                self._network = self.team.wrap(self.model, method.planning)
                self.gp = AdaGP(
                    self._network,
                    self.optimizer,
                    self.schedule,
                    predictor=(recipe.predictor or method.predictor or "trusted") if predicts else None,
                    sources=_sources(recipe, self.schedule),
                    include=recipe.include,
                    exclude=recipe.exclude,
                    immediate=recipe.immediate,
                    skip_forward=method.skip_forward,
                    stop_on_nonfinite=True,
                    # Elsewhere each look at the clock would make the device wait.
                    timer=self._clock if self.device.type == "cpu" else None,
                )
            except ValueError as error:
                raise RecipeError(str(error)) from error
        self._plateau = (
            torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer) if recipe.lr_schedule == "plateau" else None
        )
        self._feed = _Feed(self.task.epoch)
        self._tally = _Tally()
        self.records: list[EpochRecord] = []
        self.diverged: str | None = None
        self.train_seconds = 0.0
        self.batch_seconds: dict[str, list[float]] = {phase: [] for phase in KINDS}
        self.predictor_batch_seconds: dict[str, list[float]] = {phase: [] for phase in KINDS}

    @property
    def metric(self) -> Metric:
        """The figure that methods are judged by."""
        return self.task.metrics[0]

    @property
    def scores(self) -> list[float]:
        """That figure after each epoch."""
        return [record.metrics[self.metric.name] for record in self.records]

    @property
    def step_index(self) -> int:
        """Batches done."""
        return self.gp.step_index

    @property
    def epoch_complete(self) -> bool:
        """Whether the epoch under way only lacks its evaluation."""
        return self.step_index >= min((len(self.records) + 1) * self.steps_per_epoch, self.total_steps)

    @property
    def finished(self) -> bool:
        """Whether every epoch is done and evaluated, or the run was given up as diverged."""
        return len(self.records) >= self.total_epochs or self.diverged is not None

    def step(self) -> BatchEvent:
        """Train one batch.

        Raises:
            DivergedError: When the loss or a gradient is NaN or infinite; nothing was updated.
            TrainingError: When the engine or PyTorch refuses to, for example for want of memory.
        """
        step = self.step_index
        plan = self.gp.next_plan()
        phase = batch_kind(plan)
        self._set_lr(step)
        predictor_before = self.gp.predictor_seconds
        epoch, index = divmod(step, self.steps_per_epoch)

        def closure() -> Tensor:
            batch = self.task.share(self._feed.batch(epoch, index), self.team.rank, self.team.count)
            return self.task.loss(self._network, batch, self.device)

        with self._random:
            self.team.seed_batch(self.recipe.seed, step)
            begin = self._clock()
            with _explained(f"{self.name}, epoch {epoch + 1}, batch {index + 1}", self.recipe):
                loss_tensor = self.gp.step(closure)
                loss = None if loss_tensor is None else self.team.mean(float(loss_tensor))
            seconds = self._clock() - begin
        predictor_seconds = self.gp.predictor_seconds - predictor_before
        self._count(phase, seconds, predictor_seconds, loss)
        return BatchEvent(step=step, phase=phase, note=plan.note, loss=loss, seconds=seconds)

    def finish_epoch(self) -> EpochRecord:
        """Evaluate the model and close the epoch under way.

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
            train_loss=tally.loss_sum / tally.loss_batches if tally.loss_batches else math.nan,
            test_loss=evaluation.loss,
            metrics=evaluation.metrics,
            lr=float(self.optimizer.param_groups[0]["lr"]),
            phases=tally.phases,
            seconds=tally.seconds,
            predictor_seconds=tally.predictor_seconds,
            train_seconds=self.train_seconds,
            counts=dict(self.gp.counts()),
            quality=self._quality(),
            reasons=self._new_reasons(),
        )
        if self._plateau is not None:
            self._plateau.step(evaluation.loss)
        self.records.append(record)
        self._tally = _Tally()
        return record

    def give_up(self, reason: str) -> EpochRecord:
        """Close a run whose loss is no longer a number, with the figures of the weights it ended with."""
        self.diverged = reason
        return self.finish_epoch()

    def peak_bytes(self) -> int:
        """Train one batch and tell the most memory it held above the resting model.

        The batch moves the run on like any other, only slower: measure on a run made for it.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self._feed.forget()
        return peak_bytes(self.step, self.device)

    def evaluate(self) -> Evaluation:
        """Loss and metrics over the test items, found by the team's first; changes nothing in the run."""
        return self.team.lead(self._evaluate)

    def _evaluate(self) -> Evaluation:
        last = self.step_index >= self.total_steps or self.diverged is not None
        self.model.eval()
        with torch.no_grad(), self._random, _explained(f"{self.name}, evaluation", self.recipe):
            evaluation = self.task.evaluate(self.model, self.device, last=last)
        self.model.train()
        return evaluation

    def median_ms(self) -> dict[str, float]:
        """Median milliseconds of a batch of each phase that happened."""
        return {phase: 1e3 * median(times) for phase, times in self.batch_seconds.items() if times}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit: tensors and plain values only."""
        return {
            "recipe": self.recipe.to_dict(),
            "digest": self.recipe.digest(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "plateau": None if self._plateau is None else self._plateau.state_dict(),
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
            CheckpointError: When the state belongs to another recipe or model; the run is then not to be used.
        """
        if state.get("digest") != self.recipe.digest():
            raise CheckpointError(_other_recipe(self.recipe, state))
        problem = fault(state, self.state_dict()) or self._contradiction(state)
        if problem:
            raise CheckpointError(f"the checkpoint does not fit this run ({self.name}): {problem}; {_RESTORE}")
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.gp.load_state_dict(state["gp"])
            if self._plateau is not None:
                self._plateau.load_state_dict(state["plateau"])
            self._random.load_state_dict({"states": [part.cpu() for part in state["random"]["states"]]})
            self._tally = _Tally(**state["tally"])
            self.records = [EpochRecord(**record) for record in state["records"]]
            self.diverged = state["diverged"]
            self.ranks = state["ranks"] if self.finished else self.team.count
            self.train_seconds = float(state["train_seconds"])
            self.batch_seconds = _as_lists(state["batch_seconds"])
            self.predictor_batch_seconds = _as_lists(state["predictor_batch_seconds"])
            with self._random:
                pass  # the generators refuse a state that is none
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise CheckpointError(
                f"the checkpoint does not fit this run ({self.name}): {reason}; {_RESTORE}"
            ) from error

    def _contradiction(self, state: dict[str, Any]) -> str | None:
        """What cannot be true of a state of this run, each part of which has the right form."""
        step, records, tally = state["gp"]["progress"]["step_index"], state["records"], state["tally"]
        if step > self.total_steps or len(records) > self.total_epochs:
            return f"it is at batch {step} after {len(records)} epochs of {self.total_steps} and {self.total_epochs}"
        kinds = set(KINDS)
        if any(record[part].keys() != kinds for record in records for part in ("phases", "seconds")):
            return "records has other kinds of batches"
        if any(self.metric.name not in record["metrics"] for record in records):
            return f"records lacks {self.metric.name}"
        done = sum(sum(part["phases"].values()) for part in (*records, tally))
        timed = [sum(map(len, state[part].values())) for part in ("batch_seconds", "predictor_batch_seconds")]
        if any(state[part].keys() != kinds for part in ("batch_seconds", "predictor_batch_seconds")):
            return "batch_seconds has other kinds of batches"
        if [done, *timed] != [step] * 3:
            return f"it is at batch {step}, but counts {done} batches and times {timed[0]} and {timed[1]}"
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return optimizer_fault(state["optimizer"], parameters, "optimizer") or rows_fault(
            state["gp"], state["gp"]["layers"], "gp"
        )

    def _set_lr(self, step: int) -> None:
        if self._plateau is None:
            value = self.recipe.lr * lr.factor(self.recipe.lr_schedule, step / self.total_steps, self.recipe.lr_warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = value

    def _count(self, phase: str, seconds: float, predictor_seconds: float, loss: float | None) -> None:
        self.train_seconds += seconds
        self._tally.phases[phase] += 1
        self._tally.seconds[phase] += seconds
        self._tally.predictor_seconds += predictor_seconds
        self.batch_seconds[phase].append(seconds)
        self.predictor_batch_seconds[phase].append(predictor_seconds)
        if loss is not None and phase != "GP":
            self._tally.loss_sum += loss
            self._tally.loss_batches += 1

    def _quality(self) -> dict[str, dict[str, float]]:
        figures = ("cosine", "norm_ratio", "mse", "mape", "trust", "batches")
        return {
            layer: {figure: float(getattr(seen, figure)) for figure in figures}
            for layer, seen in self.gp.quality().items()
        }

    def _new_reasons(self) -> list[str]:
        """What the schedule gives as reasons beyond those already recorded; each names its step, so none repeats."""
        if not isinstance(self.schedule, schedules.Adaptive):
            return []
        known = {reason for record in self.records for reason in record.reasons}
        return [reason for reason in self.schedule.explain() if reason not in known]


@contextmanager
def _explained(place: str, recipe: Recipe) -> Iterator[None]:
    """Turn what PyTorch, the engine and the model refuse while they work into one line that says where it happened."""
    try:
        yield
    except TrainingError:
        raise
    except NonFiniteError as error:
        raise DivergedError(f"{place}: {error}") from error
    except (RuntimeError, MemoryError, ValueError) as error:
        text = str(error).strip() or type(error).__name__
        short = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text
        remedy = "; there is not enough memory: lower batch_size or take a smaller model" if short else ""
        if recipe.channels_last and "view size is not compatible" in text:  # torch names the other remedy, reshape
            remedy = "; or set channels_last=false: a view wants its images in the other layout"
        if isinstance(error, distributed.DistError) or "gloo" in text:
            raise TrainingError(
                f"{place}: another rank has stopped or hangs, see its own message; what was saved is whole, and "
                f"--resume goes on from there ({text.splitlines()[0]})"
            ) from error
        raise TrainingError(f"{place}: {text.splitlines()[0]}{remedy}") from error


class _Feed:
    """Fetches a batch only when a closure asks, so that batches trained without a forward pass cost no loading."""

    def __init__(self, epoch: Callable[[int, int], Iterator[Any]]) -> None:
        self._epoch = epoch
        self._iterator: Iterator[Any] = iter(())
        self._next = (-1, -1)
        self._last: Any = None

    def forget(self) -> None:
        """Hold no batch any more."""
        self._last, self._next = None, (-1, -1)

    def batch(self, epoch: int, index: int) -> Any:
        """The batch of that epoch and place; the same one twice in a row is not fetched twice."""
        if self._last is not None and self._next == (epoch, index + 1):
            return self._last
        if self._next != (epoch, index):
            self._iterator = self._epoch(epoch, index)
        self._last = next(self._iterator)
        self._next = (epoch, index + 1)
        return self._last


def steps_per_epoch(recipe: Recipe, dataset: AnyDataSet) -> int:
    """How many batches an epoch of a run has.

    Raises:
        RecipeError: When the data does not fill one batch.
    """
    return tasks.build(recipe, dataset).steps_per_epoch


def _sources(recipe: Recipe, schedule: Schedule) -> dict[str, Source]:
    """The sources with options; each seed draws its own random gradients."""
    built: dict[str, Source] = {"topk": TopK(recipe.topk, recipe.topk_scale), "random": Random(seed=recipe.seed)}
    return {name: source for name, source in built.items() if name in schedule.sources}


def _build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    parameters = model.parameters()
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


_RESTORE = "restore the file from a copy, or start the run again in a new folder"


def _other_recipe(recipe: Recipe, state: dict[str, Any]) -> str:
    try:
        differences = ", ".join(recipe.differences(Recipe(**state["recipe"])))
    except (KeyError, TypeError, RecipeError):
        differences = "it holds no recipe of this version"
    return f"the checkpoint belongs to another run ({differences}): resume with the recipe it was made with"


def _as_tensors(times: dict[str, list[float]]) -> dict[str, Tensor]:
    return {phase: torch.tensor(values, dtype=torch.float64) for phase, values in times.items()}


def _as_lists(times: dict[str, Tensor]) -> dict[str, list[float]]:
    return {phase: values.tolist() for phase, values in times.items()}
