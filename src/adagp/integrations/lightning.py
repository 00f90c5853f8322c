"""Lightning: AdaGP for modules under automatic optimization, which stay as they are."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from adagp._engine.batch import Batch
from adagp._engine.engine import AdaGP
from adagp.extras import require
from adagp.integrations.figures import log_figures
from adagp.integrations.resizing import Resize, refuse_missing_resize, resized
from adagp.predictors import Predictor
from adagp.schedules import Plan, Schedule

require("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

_REPLACED = ("training_step", "backward")


class AdaGPCallback(Callback):
    """Runs the batches of `trainer.fit` under the plans of a schedule; one optimizer step is one step of it.

    Accumulation, clipping, precision, `global_step` and checkpoints stay Lightning's own. Its state is in Lightning's
    checkpoints. While `fit` runs, the module's `training_step` and `backward` are replaced on that object.

    Attributes:
        gp: The `AdaGP` of the present or last `fit`; None before.
    """

    def __init__(
        self,
        schedule: Schedule | Callable[[int], Plan],
        predictor: str | Predictor | None = "trusted",
        *,
        resize: Resize | None = None,
        **options: Any,
    ) -> None:
        """Take what `AdaGP` needs beside model and optimizer.

        Args:
            schedule: Says for each optimizer step which source supplies each layer; see `adagp.schedules`.
            predictor: As for `AdaGP`.
            resize: Makes the batch of `training_step` smaller, for schedules with coarse batches.
            options: Further arguments of `AdaGP`.
        """
        refuse_missing_resize(schedule, resize)
        self.gp: AdaGP | None = None
        self._resize = resize
        self._options: dict[str, Any] = {"schedule": schedule, "predictor": predictor, **options}
        self._loaded: Mapping[str, Any] | None = None
        self._batch: Batch | None = None
        self._is_last = True
        self._replaced: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget an earlier `fit`: the state that a checkpoint brings next is not for it."""
        if stage == "fit":
            self.gp = self._loaded = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizer that Lightning has built."""
        _refuse(trainer, pl_module)
        self.gp = AdaGP(trainer.model, trainer.optimizers, **self._options)
        if self._loaded is not None:
            self.gp.load_state_dict(self._loaded)
            self._loaded = None
        self._replace(trainer, pl_module)

    def _replace(self, trainer: Trainer, pl_module: LightningModule) -> None:
        training_step, backward = pl_module.training_step, pl_module.backward

        @wraps(training_step)
        def step_under_plan(batch: Any, *args: Any, **kwargs: Any) -> Any:
            opened = self._open(trainer)
            try:
                output = training_step(resized(opened, batch, self._resize), *args, **kwargs)
            except BaseException as error:
                self._give_up(error)
                raise
            if output is None:  # Lightning then runs no backward
                self._close(Batch.ran_backward)
            return output

        @wraps(backward)
        def backward_under_plan(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self._close(lambda batch: batch.backward(loss, by=lambda one: backward(one, *args, **kwargs)))

        self._replaced = {name: vars(pl_module)[name] for name in _REPLACED if name in vars(pl_module)}
        pl_module.training_step, pl_module.backward = step_under_plan, backward_under_plan

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note whether Lightning steps the optimizer after this micro-batch."""
        done = batch_idx + 1
        self._is_last = (
            done % trainer.accumulate_grad_batches == 0 or done >= trainer.num_training_batches or trainer.is_last_batch
        )

    def _open(self, trainer: Trainer) -> Batch:
        assert self.gp is not None
        batch = self.gp.batch(scaler=getattr(trainer.precision_plugin, "scaler", None), last=self._is_last)
        if not batch.has_begun:  # Lightning clears gradients only after the forward
            for optimizer in trainer.optimizers:
                optimizer.zero_grad(set_to_none=True)
        self._batch = batch.__enter__()
        return self._batch

    def _close(self, finish: Callable[[Batch], None]) -> None:
        assert self._batch is not None
        try:
            finish(self._batch)
        except BaseException as error:
            self._give_up(error)
            raise
        batch, self._batch = self._batch, None
        batch.__exit__(None, None, None)

    def _give_up(self, error: BaseException) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.__exit__(type(error), error, error.__traceback__)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave no plan in force, and the module as it was: Lightning calls `teardown` only when all went well."""
        self._give_up(exception)
        self._put_back(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the figures of AdaGP."""
        if self.gp is not None and self._is_last:
            pl_module.log_dict(log_figures(self.gp))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module as it was."""
        if stage == "fit":
            self._put_back(pl_module)

    def _put_back(self, pl_module: LightningModule) -> None:
        if self.gp is not None:
            self.gp.remove()
            for name in _REPLACED:
                vars(pl_module).pop(name, None)
            vars(pl_module).update(self._replaced)

    def state_dict(self) -> dict[str, Any]:
        """The state of AdaGP, for Lightning's checkpoint."""
        return {} if self.gp is None else {"gp": self.gp.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of a checkpoint over, at once or when `fit` has built the optimizer."""
        if self.gp is None:
            self._loaded = state_dict.get("gp")
        elif "gp" in state_dict:
            self.gp.load_state_dict(state_dict["gp"])


def _refuse(trainer: Trainer, pl_module: LightningModule) -> None:
    name = type(pl_module).__name__
    if not pl_module.automatic_optimization:
        raise ValueError(
            f"{name} optimizes manually: leave AdaGPCallback out, and in training_step call "
            "gp.step(closure, backward=self.manual_backward)"
        )
    if trainer.strategy.handles_gradient_accumulation:
        raise ValueError(
            f"{type(trainer.strategy).__name__} accumulates gradients by itself: use a strategy in which Lightning does"
        )
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in trainer.optimizers):
        raise ValueError("LBFGS evaluates a batch several times: optimize manually, with gp.step in training_step")
