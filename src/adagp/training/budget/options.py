"""The options of the budget protocol, as a recipe file's `[budget]` table holds them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe

SHARES = (0.5, 0.7, 1.0)
VALIDATION = 1000
RATE_FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class BudgetOptions:
    """How methods are tuned and how long they train.

    Attributes:
        rates: The learning rates that every method is tried with. Empty: half of, once and twice the recipe's.
        batch_sizes: The batch sizes that plain backpropagation is tried with. Empty: half of and once the recipe's.
        shares: The parts of the budget that runs are given, in rising order. The last is 1. The target is what plain
            backpropagation reaches on average in the middle one.
        validation: Items set aside to choose the learning rate on. Training uses the others.
        pretrain: The fields of the recipe that differ in the training whose weights all runs start from. Empty: all
            start from random weights.
    """

    rates: tuple[float, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    shares: tuple[float, ...] = SHARES
    validation: int = VALIDATION
    pretrain: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Report all unusable values together."""
        problems = []
        if not all(_is_number(rate) and 0 < rate < math.inf for rate in self.rates) or _repeats(self.rates):
            problems.append(f"rates = {list(self.rates)} must be positive numbers, each once")
        if not all(type(size) is int and size > 0 for size in self.batch_sizes) or _repeats(self.batch_sizes):
            problems.append(f"batch_sizes = {list(self.batch_sizes)} must be whole numbers from 1, each once")
        rising = all(_is_number(share) and share > 0 for share in self.shares) and list(self.shares) == sorted(
            set(self.shares)
        )
        if not self.shares or not rising or self.shares[-1] != 1:
            problems.append(f"shares = {list(self.shares)} must rise and end with 1, such as 0.5,0.7,1")
        if type(self.validation) is not int or self.validation < 1:
            problems.append(f"validation = {self.validation} must be a whole number of items from 1")
        if problems:
            raise RecipeError("; ".join(problems))

    @property
    def target_share(self) -> float:
        """The share of the budget in which plain backpropagation sets the target."""
        return self.shares[len(self.shares) // 2]

    def filled(self, recipe: Recipe) -> Self:
        """The same with a grid stated in full."""
        sizes = dict.fromkeys((max(1, recipe.batch_size // 2), recipe.batch_size))
        return type(self)(
            self.rates or tuple(factor * recipe.lr for factor in RATE_FACTORS),
            self.batch_sizes or tuple(sizes),
            self.shares,
            self.validation,
            self.pretrain,
        )

    def pretraining(self, recipe: Recipe) -> Recipe | None:
        """The recipe of the training that comes first; None where there is none."""
        return Recipe.from_mapping(dict(self.pretrain), recipe.replace(method="bp")) if self.pretrain else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the inverse of `from_mapping`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: dict(value) if name == "pretrain" else list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], base: Self | None = None) -> Self:
        """Options from plain values on top of `base` or the defaults.

        Raises:
            RecipeError: For an unknown name or an unusable value.
        """
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in values if name not in known]:
            raise RecipeError(f"[budget] has an unknown '{unknown[0]}': choose from {', '.join(known)}")
        found = {name: getattr(base, name) for name in known} if base else {}
        for name, value in values.items():
            if name == "pretrain":
                if not isinstance(value, Mapping):
                    raise RecipeError("[budget] pretrain must be a table of recipe fields")
                found[name] = tuple(value.items())
            elif name == "validation":
                found[name] = value
            else:
                if not isinstance(value, Sequence) or isinstance(value, str):
                    raise RecipeError(f"[budget] {name} must be a list of numbers")
                found[name] = tuple(value)
        return cls(**found)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _repeats(values: tuple[Any, ...]) -> bool:
    return len(set(values)) < len(values)
