"""How far the gradients of sources and of coarse batches agree with the exact ones, beside how far batches differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from torch import Tensor

from adagp._engine.finite import NonFiniteError
from adagp.advice.attached import BP, Attached, Gradient
from adagp.schedules import Plan


@dataclass
class Sums:
    """Inner products of an estimated gradient with the exact one of the same batch, summed over batches."""

    dot: float = 0.0
    estimated: float = 0.0
    exact: float = 0.0

    def add(self, estimate: Tensor | None, exact: Tensor) -> None:
        """One more batch; a source that left the layer alone gave zeros."""
        self.exact += float(exact @ exact)
        if estimate is not None:
            self.dot += float(estimate @ exact)
            self.estimated += float(estimate @ estimate)

    @property
    def cosine(self) -> float:
        """The cosine of both; 0 where one is zero or the estimate is not finite."""
        scale = (self.estimated * self.exact) ** 0.5
        return self.dot / scale if 0 < scale < inf else 0.0

    @property
    def error(self) -> float:
        """The squared difference over the squared exact gradient; infinite where the estimate is not finite."""
        if not isfinite(self.estimated):
            return inf
        return max(self.estimated - 2 * self.dot + self.exact, 0.0) / self.exact if self.exact > 0 else 0.0


def total(sums: Mapping[str, Sums]) -> Sums:
    """All layers as one vector."""
    parts = sums.values()
    return Sums(sum(one.dot for one in parts), sum(one.estimated for one in parts), sum(one.exact for one in parts))


@dataclass
class Agreement:
    """What some batches showed.

    Attributes:
        plans: For each plan, by its name, the sums of each layer.
        spread: For each layer the sums of one batch's gradient with another's; empty with a single batch.
        batches: The number of batches.
    """

    plans: dict[str, dict[str, Sums]]
    spread: dict[str, Sums] = field(default_factory=dict)
    batches: int = 0

    @property
    def total_spread(self) -> float | None:
        """The squared difference of two batches' gradients over their square, all layers as one vector."""
        return total(self.spread).error if self.spread else None

    def added_variance(self, plan: str, layer: str | None = None) -> float | None:
        """The variance that a plan adds, over that of the mini-batch itself; None where batches cannot be compared.

        Two batches differ by twice the variance of one.
        """
        if not self.spread:
            return None
        ours, others = self.plans[plan], self.spread
        error, spread = (total(ours), total(others)) if layer is None else (ours[layer], others.get(layer, Sums()))
        own = spread.error * spread.exact / 2 / max(self.batches - 1, 1)
        added = error.error * error.exact / self.batches
        return added / own if own > 0 else None


def compare(attached: Attached, plans: Mapping[str, Plan], is_over: Callable[[], bool]) -> Agreement:
    """Compute the gradient of batches that were not used to warm up, under each plan and exactly; nothing is updated.

    Args:
        attached: What runs the batches.
        plans: The plans by name.
        is_over: Asked before every batch but the first two, which it takes to compare batches.

    Raises:
        NonFiniteError: When an exact gradient is not finite.
    """
    result = Agreement({name: {layer.name: Sums() for layer in attached.layers} for name in plans})
    before: Gradient | None = None
    for index in range(attached.subject.first_unseen, len(attached.subject.batches)):
        if result.batches > 1 and is_over():
            break
        # The exact gradient last: sources with a memory learn from it, and must not know it beforehand.
        estimates = {name: attached.gradient(plan, index) for name, plan in plans.items()}
        exact = attached.gradient(BP, index)
        if not all(isfinite(float(vector @ vector)) for vector in exact.values()):
            raise NonFiniteError(f"the gradient of batch {index + 1} is not finite")
        for name, estimate in estimates.items():
            _add(result.plans[name], estimate, exact)
        if before is not None:
            _add(result.spread, before, exact)
        before = exact
        result.batches += 1
    return result


def _add(sums: dict[str, Sums], estimate: Gradient, exact: Gradient) -> None:
    for layer, vector in exact.items():
        sums.setdefault(layer, Sums()).add(estimate.get(layer), vector)
