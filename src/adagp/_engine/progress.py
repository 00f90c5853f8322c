"""How far training has come: a plain dataclass, whose fields are what is saved."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from adagp.quality import LayerQuality

Result = TypeVar("Result")


@dataclass
class LayerProgress:
    """What one covered layer has been through.

    Attributes:
        has_run: Whether its module was ever called in a batch.
        dropped: Why it is covered no longer; empty while it is.
        quality: The running quality of its predictions.
    """

    has_run: bool = False
    dropped: str = ""
    quality: LayerQuality = field(default_factory=LayerQuality)


@dataclass
class Progress:
    """What changes from batch to batch, and is saved.

    Attributes:
        layers: The progress of every layer that was covered when `AdaGP` was attached, by name.
        step_index: The number of batches that are over.
        falls_back: Whether the next batch is plain backpropagation, because the last one failed.
        was_full: Whether a batch so far had its samples at full size.
        checks_finite: Whether true gradients are checked for NaN and infinity; None until a first batch decides it.
        predictor_seconds: The predictor's share of the time; 0 without a clock.
        counts: How many layer updates each source supplied, and how often `fallback` and `nonfinite` happened.
    """

    layers: dict[str, LayerProgress]
    step_index: int = 0
    falls_back: bool = False
    was_full: bool = False
    checks_finite: bool | None = None
    predictor_seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, event: str, times: int = 1) -> None:
        """Add to the counts."""
        if times:
            self.counts[event] = self.counts.get(event, 0) + times

    def timed(self, timer: Callable[[], float] | None, work: Callable[[], Result]) -> Result:
        """Do the predictor's work on its clock, if there is one."""
        if timer is None:
            return work()
        start = timer()
        result = work()
        self.predictor_seconds += timer() - start
        return result

    def state_dict(self) -> dict[str, Any]:
        """Every field, in plain types."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, in place: an open batch must not count for another."""
        layers = {
            name: LayerProgress(**{**saved, "quality": LayerQuality(**saved["quality"])})
            for name, saved in state["layers"].items()
        }
        loaded = Progress(**{**state, "layers": layers, "counts": dict(state["counts"])})
        vars(self).update(vars(loaded))
