"""The methods `train` and `compare` know: one table from which the command line's help is generated too."""

from dataclasses import dataclass

from adagp import schedules
from adagp.schedules import Schedule


@dataclass(frozen=True)
class Method:
    """Where the gradients of GP batches come from, and what that needs.

    Attributes:
        name: As the user types it.
        summary: One line for the user.
        source: The source of the layers in GP batches; None for methods without GP batches.
        predictor: The predictor; None where nothing is predicted.
        adaptive: The schedule follows the measured quality instead of the paper's ladder.
    """

    name: str
    summary: str
    source: str | None = None
    predictor: str | None = None
    adaptive: bool = False

    @property
    def skip_forward(self) -> bool:
        """Whether GP batches leave the forward pass out: all sources but predictions can do without activations."""
        return self.source is not None and self.source != "predicted"

    def summary_with(self, predictor: str | None) -> str:
        """The summary, true also where a recipe names another predictor than the method's own."""
        if self.predictor is None or predictor in (None, self.predictor):
            return self.summary
        return f"{self.summary}; here with predictor {predictor} instead of {self.predictor}"

    def schedule(self, warmup_steps: int, rung_steps: int, steps_per_epoch: int) -> Schedule:
        """The schedule of a run; the ladder counts in batches, because in short runs rungs end inside epochs."""
        if self.source is None:
            return schedules.always_backprop()
        if self.adaptive:
            return schedules.adaptive(steps_per_epoch, warmup_epochs=warmup_steps / steps_per_epoch)
        return schedules.ladder(1, warmup_epochs=warmup_steps, rung_epochs=rung_steps, source=self.source)

    def calibration_schedule(self) -> Schedule:
        """GP and BP batches in turn, to time both within a few batches."""
        return schedules.always_backprop() if self.source is None else schedules.fixed(1, 1, source=self.source)


_METHODS = (
    Method("bp", "plain backpropagation in every batch: the reference"),
    Method("adagp", "ADA-GP's ladder with the default (trusted) predictor", "predicted", "trusted"),
    Method("adagp-paper", "ADA-GP's ladder with the paper's predictor", "predicted", "paper"),
    Method("adaptive", "GP batches as often as the measured quality allows", "predicted", "trusted", adaptive=True),
    Method("skip", "the ladder with its GP batches left out altogether", "skip"),
    Method("mean", "the ladder; GP batches apply the running mean of true gradients, without a forward", "mean"),
    Method("last", "the ladder; GP batches repeat the last true gradient, without a forward", "last"),
    Method("zero", "the ladder; GP batches apply gradient 0: momentum and weight decay alone move the weights", "zero"),
    Method("short-bp", "plain backpropagation given only ADA-GP's measured time"),
)
_BY_NAME = {method.name: method for method in _METHODS}


def names() -> list[str]:
    """Every method's name, in the order of presentation."""
    return list(_BY_NAME)


def get(name: str) -> Method:
    """The method of that name; `Recipe` has already refused unknown ones."""
    return _BY_NAME[name]


def summary() -> str:
    """A readable list of all methods, for help texts."""
    return "\n".join(f"{method.name}: {method.summary}" for method in _METHODS)
