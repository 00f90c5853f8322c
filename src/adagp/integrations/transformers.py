"""Hugging Face Trainer: accumulation, clipping, mixed precision, checkpoints and logs stay Trainer's own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagp._engine.batch import Batch
from adagp._engine.engine import AdaGP
from adagp.extras import require
from adagp.files import write_atomically
from adagp.integrations.figures import log_figures
from adagp.integrations.resizing import Resize, refuse_missing_resize, resized
from adagp.predictors import Predictor
from adagp.schedules import Plan, Schedule

require("transformers", "accelerate")

from transformers import Trainer, TrainerCallback  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint  # noqa: E402

_FILE = "adagp.pt"
"""The file in Trainer's checkpoint folder."""


class AdaGPTrainerMixin:
    """Put it before `Trainer`, or before a subclass of yours: `class MyTrainer(AdaGPTrainerMixin, Trainer)`.

    One optimizer step of Trainer is one step of the schedule, however many micro-batches it has.

    Attributes:
        gp: The `AdaGP` of the present or last `train()`; None before.
    """

    gp: AdaGP | None = None

    def __init__(
        self,
        *args: Any,
        schedule: Schedule | Callable[[int], Plan],
        predictor: str | Predictor | None = "trusted",
        resize: Resize | None = None,
        adagp: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take what `Trainer` takes, and what `AdaGP` needs beside model and optimizer.

        Args:
            args: For `Trainer`.
            schedule: Says for each optimizer step which source supplies each layer; see `adagp.schedules`.
            predictor: As for `AdaGP`.
            resize: Makes the inputs of a micro-batch smaller, for schedules with coarse batches.
            adagp: Further arguments of `AdaGP`, such as `{"exclude": "lm_head"}`.
            kwargs: For `Trainer`.
        """
        refuse_missing_resize(schedule, resize)
        super().__init__(*args, **kwargs)
        self._options: dict[str, Any] = {"schedule": schedule, "predictor": predictor, **(adagp or {})}
        self._resize = resize
        self._folder: Path | None = None
        self.add_callback(_Events(self))  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as `Trainer` does; a checkpoint brings the state of AdaGP back too."""
        found: Any = resume_from_checkpoint
        if resume_from_checkpoint is True:
            found = get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        self._folder = Path(found) if found else None
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def begin(self) -> None:
        """Attach to what Trainer has prepared. It compiles the model at its first call, which is later."""
        if self.gp is not None:
            self.gp.remove()
        wrapped: nn.Module = self.model_wrapped  # type: ignore[attr-defined]
        plain = getattr(wrapped, "_orig_mod", wrapped)
        self.gp = AdaGP(plain, self.optimizer, **self._options)  # type: ignore[attr-defined]
        if self._folder is not None:
            self.gp.load_state_dict(_load(self._folder))

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One micro-batch of Trainer's, under the plan of the optimizer step that it belongs to."""
        assert self.gp is not None
        accelerator = self.accelerator  # type: ignore[attr-defined]
        with (
            self.gp.batch(scaler=accelerator.scaler, last=accelerator.sync_gradients) as batch,
            _backward_through(batch, accelerator),
        ):
            inputs = resized(batch, inputs, self._resize)
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as `Trainer` does; the figures of AdaGP stand beside the training loss."""
        figures = log_figures(self.gp) if self.gp is not None and "loss" in logs else {}
        super().log({**logs, **figures}, *args, **kwargs)  # type: ignore[misc]


class AdaGPTrainer(AdaGPTrainerMixin, Trainer):
    """`transformers.Trainer` with AdaGP."""


class _Events(TrainerCallback):
    """The moments at which Trainer has prepared the model, and has written a checkpoint."""

    def __init__(self, trainer: AdaGPTrainerMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.begin()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        gp = self._trainer.gp
        if gp is not None and args.should_save:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            write_atomically(folder / _FILE, partial(torch.save, gp.state_dict()))


@contextmanager
def _backward_through(batch: Batch, accelerator: Any) -> Iterator[None]:
    """Inside, the accelerator's backward is that of the batch, which calls the accelerator's own where it needs one."""
    own = accelerator.backward

    def backward(loss: Tensor, **kwargs: Any) -> None:
        batch.backward(loss, by=partial(own, **kwargs))

    accelerator.backward = backward
    try:
        yield
    finally:
        del accelerator.backward


def _load(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the checkpoint was written without AdaGP; start without resuming")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
