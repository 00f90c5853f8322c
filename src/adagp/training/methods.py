"""The methods of `train` and `compare`, in one table that also generates the command line's help."""

from dataclasses import dataclass
from enum import Enum, auto

from adagp.schedules import COARSE


class Planning(Enum):
    """Which batches, or which layers in them, do without backpropagation."""

    BACKPROP = auto()
    """None."""
    LADDER = auto()
    """Whole GP batches, on ADA-GP's ladder."""
    ADAPTIVE = auto()
    """Whole GP batches, as often as the measured quality allows."""
    PREFIX = auto()
    """The first layers in the ladder's GP batches."""
    PROGRESSIVE = auto()
    """None; samples are small first and full size at the end."""
    GROWING = auto()
    """None; samples grow when a measurement says that it pays."""
    LOCAL = auto()
    """All parts of the network but the last, which learn from losses of their own."""
    APPROXIMATION = auto()
    """Some layers in some batches, by the recipe's schedule."""
    SAMPLED = auto()
    """The weight gradients of all layers of one kind are sampled, in every batch."""
    ECONOMICAL = auto()
    """The weight gradients of layers for which a measurement says that it pays are sampled."""
    TABLE = auto()
    """Those that the table in the recipe's schedule names."""


@dataclass(frozen=True)
class Method:
    """A way to train: which gradients backpropagation does not supply, and where they come from.

    Attributes:
        name: As the user types it.
        summary: One line for the user.
        planning: Which layers and batches do without backpropagation.
        source: Their source; None if all use backpropagation, or if a table names several sources.
        predictor: The predictor; None if nothing is predicted.
    """

    name: str
    summary: str
    planning: Planning = Planning.LADDER
    source: str | None = None
    predictor: str | None = None

    @property
    def skip_forward(self) -> bool:
        """Whether GP batches leave out the forward pass: all sources but `predicted` can do without activations."""
        return self.planning is Planning.LADDER and self.source not in ("predicted", COARSE)

    @property
    def is_coarse(self) -> bool:
        """Whether some batches have smaller samples."""
        return self.source == COARSE or self.planning in (Planning.PROGRESSIVE, Planning.GROWING)

    def summary_with(self, predictor: str | None) -> str:
        """The summary, corrected where a recipe names another predictor than the method's own."""
        if self.predictor is None or predictor in (None, self.predictor):
            return self.summary
        return f"{self.summary}; here with predictor {predictor} instead of {self.predictor}"


_METHODS = (
    Method("bp", "plain backpropagation in every batch: the reference", Planning.BACKPROP),
    Method("progressive", "backpropagation on small samples first, at full size in the end", Planning.PROGRESSIVE),
    Method("growing", "the same, with samples that grow when a measurement says that it pays", Planning.GROWING),
    Method("coarse", "the ladder; its GP batches are backpropagation on smaller samples instead", source=COARSE),
    Method(
        "adagp",
        "ADA-GP's ladder with the default (trusted) predictor; small networks by means alone",
        source="predicted",
        predictor="trusted",
    ),
    Method("adagp-paper", "ADA-GP's ladder with the paper's predictor", source="predicted", predictor="paper"),
    Method("adaptive", "GP batches as often as the measured quality allows", Planning.ADAPTIVE, "predicted", "trusted"),
    Method("skip", "the ladder with its GP batches left out", source="skip"),
    Method("mean", "the ladder; GP batches apply the running mean of true gradients, without a forward", source="mean"),
    Method("last", "the ladder; GP batches repeat the last true gradient, without a forward", source="last"),
    Method(
        "momentum", "the ladder; GP batches apply gradient 0: momentum and weight decay move the weights", source="zero"
    ),
    Method("short-bp", "plain backpropagation given only the time of the slowest method judged", Planning.BACKPROP),
    Method("small-batch", "backpropagation in batches of half the size, so in more of them", Planning.BACKPROP),
    Method("small-size", "backpropagation on small samples throughout, tested at that size", Planning.BACKPROP),
    Method("selective", "backpropagation on the half of a batch with the larger losses, late", Planning.BACKPROP),
    Method("pruning", "backpropagation without a quarter of the samples, easy ones, in each epoch", Planning.BACKPROP),
    Method("freezing", "backpropagation; early layers stop learning in the second half", Planning.BACKPROP),
    Method("averaging", "backpropagation; the running mean of the weights is what counts", Planning.BACKPROP),
    Method("zero", "some layers in some batches get gradient 0 (see --schedule)", Planning.APPROXIMATION, "zero"),
    Method("random", "the same layers get new random numbers in every batch", Planning.APPROXIMATION, "random"),
    Method(
        "topk", "the same layers use only the k largest output gradients per channel", Planning.APPROXIMATION, "topk"
    ),
    Method(
        "sampled", "all convolutions, or else Linear layers, sample their weight gradients", Planning.SAMPLED, "sampled"
    ),
    Method(
        "economical",
        "layers sample their weight gradients where a measurement says that it pays",
        Planning.ECONOMICAL,
        "sampled",
    ),
    Method(
        "prefix",
        "the ladder; in GP batches the layers up to `until` are predicted, the rest stay exact",
        Planning.PREFIX,
        "predicted",
        "trusted",
    ),
    Method(
        "prefix-zero",
        "the ladder; in GP batches the layers up to `until` get gradient 0, the rest stay exact",
        Planning.PREFIX,
        "zero",
    ),
    Method("local", "the network is cut into parts, and each learns from a head of its own", Planning.LOCAL, "local"),
    Method("table", "every layer's source in every batch from a table (see --schedule)", Planning.TABLE),
    Method("advised", "the table that `adagp advise` finds to pay, measured before training", Planning.TABLE),
)
_BY_NAME = {method.name: method for method in _METHODS}


def names() -> list[str]:
    """Every method's name, in the order of presentation."""
    return list(_BY_NAME)


def get(name: str) -> Method:
    """The method of that name; `Recipe` has already refused unknown ones."""
    return _BY_NAME[name]


def summary() -> str:
    """A list of all methods for help texts, one per line."""
    return "\n".join(f"{method.name}: {method.summary}" for method in _METHODS)
