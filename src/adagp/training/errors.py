"""Errors of training runs, one type per kind of remedy."""

from adagp.errors import AdagpError


class TrainingError(AdagpError):
    """A training run cannot continue; the message names the cause and the remedy."""


class RecipeError(TrainingError, ValueError):
    """A recipe cannot be used as written: the user corrects a value and starts again."""

    exit_code = 2


class RunFolderError(TrainingError):
    """A run folder is missing, already used, or holds another run."""


class FolderInUseError(RunFolderError):
    """Another process writes to the run folder now."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, read or trusted."""


class DivergedError(TrainingError):
    """The loss or a gradient is not finite; the last checkpoint is from before that."""


class Interrupted(TrainingError):  # noqa: N818 - not a failure: the run is saved and can continue
    """The user or the system asked to stop; everything done so far is saved.

    Attributes:
        signal_number: The signal, which decides the exit code.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}; the run is saved and can be resumed")
        self.signal_number = signal_number
