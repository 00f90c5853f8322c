"""TensorBoard event files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.training.errors import TrainingError
from adagp.training.run.observers import Observer

if TYPE_CHECKING:
    from adagp.training.run.records import EpochRecord
    from adagp.training.run.run import Run


class TensorBoard(Observer):
    """Writes every epoch's figures of every run below one folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets one sub-folder per run.

        Raises:
            TrainingError: When TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrainingError(
                "TensorBoard is not installed: pip install 'adagp[tensorboard]', or leave --tensorboard out"
            ) from error
        self._folder = folder
        self._make: Any = SummaryWriter
        self._writers: dict[str, Any] = {}

    def on_epoch(self, run: "Run", record: "EpochRecord") -> None:
        """One point per figure, at the run's step."""
        name = run.name.replace(" ", "-")
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = self._make(str(self._folder / name))
        scalars = {
            "loss/train": record.train_loss,
            "loss/test": record.test_loss,
            **{f"{name}/test": value for name, value in record.metrics.items()},
            "lr": record.lr,
            "seconds/train": record.train_seconds,
            "seconds/predictor": record.predictor_seconds,
            **{f"seconds/{kind}": value for kind, value in record.seconds.items()},
            **{f"cosine/{layer}": figures["cosine"] for layer, figures in record.quality.items()},
            **{f"trust/{layer}": figures["trust"] for layer, figures in record.quality.items()},
        }
        for tag, value in scalars.items():
            writer.add_scalar(tag, value, record.step)
        writer.flush()
