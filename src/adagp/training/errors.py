"""What can go wrong in a training run, one type per kind of remedy."""

from adagp.errors import AdagpError


class TrainingError(AdagpError):
    """A training run cannot go on; the message names the cause and the remedy."""


class RecipeError(TrainingError, ValueError):
    """A recipe is not usable as written: the user corrects a value and starts again."""

    exit_code = 2


class RunFolderError(TrainingError):
    """A run folder is missing, already used, or holds another run."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, read or trusted."""


class DivergedError(TrainingError):
    """The loss is no longer a number; the last checkpoint is from before that."""


class Interrupted(TrainingError):  # noqa: N818 - not a failure: the run is saved and can go on
    """The user or the system asked to stop; everything done so far is saved.

    Attributes:
        signal_number: The signal that asked for it, so that a shell gets the usual exit code.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}; the run is saved and can be resumed")
        self.signal_number = signal_number
