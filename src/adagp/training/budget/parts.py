"""The runs of a comparison under the budget protocol: those that choose a learning rate, and those that are judged."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from adagp.training.budget.reference import Reference
from adagp.training.budget.settings import PLAIN, BudgetSettings
from adagp.training.recipe import Recipe

TUNING_SEED = 999
"""The seed of the runs that choose; none of those that are judged should have it."""
PRETRAINED = "pretrained"


@dataclass(frozen=True)
class Candidate:
    """A method at one learning rate and batch size."""

    method: str
    lr: float
    batch_size: int

    @property
    def cost(self) -> str:
        """The label of its costs in the reference."""
        return cost_label(self.method, self.batch_size)


def cost_label(method: str, batch_size: int) -> str:
    """The label of a method's costs: they depend on the batch size and not on the learning rate."""
    return f"{method}-batch{batch_size}"


@dataclass(frozen=True)
class Part:
    """One run.

    Attributes:
        folder: Its folder, below that of the comparison.
        candidate: The method, learning rate and batch size.
        share: The share of the budget that it gets.
        seed: Its seed.
        chooses: Whether it is evaluated on the validation items, to choose among candidates.
    """

    folder: str
    candidate: Candidate
    share: float
    seed: int
    chooses: bool = False

    def recipe(self, settings: BudgetSettings, reference: Reference, weights: Path | None) -> Recipe:
        """Its recipe; the number of batches follows from the costs."""
        recipe = settings.recipe.replace(
            method=self.candidate.method,
            lr=self.candidate.lr,
            batch_size=self.candidate.batch_size,
            seed=self.seed,
            weights=None if weights is None else str(weights),
        )
        if self.chooses:
            recipe = recipe.replace(test_limit=settings.options.validation)
        return recipe.replace(steps=reference.steps(self.candidate.cost, recipe, self.share))


def candidates(settings: BudgetSettings, method: str) -> list[Candidate]:
    """What a method is tried with: the grid of rates, and for plain backpropagation also that of batch sizes."""
    options = settings.options
    sizes = options.batch_sizes if method == PLAIN else (settings.recipe.batch_size,)
    return [Candidate(method, rate, size) for size in sizes for rate in options.rates]


def choosing_parts(settings: BudgetSettings, method: str) -> list[Part]:
    """The runs that choose a method's learning rate, in the budget that sets the target."""
    return [
        Part(
            f"tuning/{candidate.method}-batch{candidate.batch_size}-lr{candidate.lr:g}",
            candidate,
            settings.options.target_share,
            TUNING_SEED,
            chooses=True,
        )
        for candidate in candidates(settings, method)
    ]


def judged_part(candidate: Candidate, share: float, seed: int) -> Part:
    """A run whose score counts."""
    return Part(f"runs/{candidate.method}-share{share:g}-seed{seed}", candidate, share, seed)


def parts(settings: BudgetSettings, chosen: Mapping[str, Candidate | None]) -> Iterator[Part]:
    """Every run that can be started, most urgent first.

    Plain backpropagation comes first, because it sets the target; then seed by seed, so that what is there at any time
    can be compared. `chosen` holds None for methods whose learning rate is not chosen yet.
    """
    options = settings.options
    yield from choosing_parts(settings, PLAIN)
    plain = chosen.get(PLAIN)
    if plain is not None:
        shares = sorted(options.shares, key=lambda share: share != options.target_share)
        yield from (judged_part(plain, share, seed) for share in shares for seed in settings.seeds)
    others = [name for name in settings.methods if name != PLAIN]
    for name in others:
        yield from choosing_parts(settings, name)
    for seed in settings.seeds:
        for name in others:
            candidate = chosen.get(name)
            if candidate is not None:
                yield from (judged_part(candidate, share, seed) for share in options.shares)
