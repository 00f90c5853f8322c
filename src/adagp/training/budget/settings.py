"""What a comparison under the budget protocol compares; methods and seeds can be added to one that exists."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from adagp.training import methods
from adagp.training.budget.options import BudgetOptions
from adagp.training.comparison.settings import Settings
from adagp.training.errors import RecipeError, RunFolderError
from adagp.training.recipe import Recipe
from adagp.training.run.folder import read_file, write_file
from adagp.training.run.lock import waiting_lock

FILE = "budget.json"
PLAIN = "bp"
_DECAYING = ("cosine", "step", "exponential")


@dataclass(frozen=True)
class BudgetSettings:
    """What is compared.

    Attributes:
        recipe: What all runs share. Its epochs are those of plain backpropagation in the whole budget; method, learning
            rate, batch size, seed and steps are set per run.
        methods: The methods, `bp` first.
        seeds: The seeds that each method runs with.
        options: How methods are tuned and how long they train.
        origin: The words of the command line that name the recipe, for readers who want to run it again.
    """

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    options: BudgetOptions
    origin: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be compared, before anything is trained."""
        if self.recipe.lr_schedule not in _DECAYING:
            raise RecipeError(
                f"lr_schedule = {self.recipe.lr_schedule} does not decay within a budget: choose one of "
                f"{', '.join(_DECAYING)}"
            )
        if self.recipe.steps is not None:
            raise RecipeError(f"steps = {self.recipe.steps} has no place here: epochs set the budget")
        Settings(self.recipe, self.methods, self.seeds)
        self.options.pretraining(self.recipe)

    @classmethod
    def of(
        cls, recipe: Recipe, names: tuple[str, ...], seeds: tuple[int, ...], options: BudgetOptions, origin: str = ""
    ) -> Self:
        """Settings with the grid stated, and `bp` in place of `short-bp`, which it equals in the same time."""
        chosen = tuple(dict.fromkeys((PLAIN, *(name for name in names if name != "short-bp"))))
        return cls(recipe, chosen, seeds, options.filled(recipe), origin)

    def with_parts(self, other: "BudgetSettings") -> Self:
        """These settings with the methods and seeds of others added.

        Raises:
            RunFolderError: When they differ in anything else.
        """
        different = self.recipe.differences(other.recipe)
        mine, theirs = self.options.to_dict(), other.options.to_dict()
        different += [f"{name} {mine[name]!r} against {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
        if different:
            raise RunFolderError(
                f"the folder holds another comparison ({', '.join(different)}): only methods and seeds can be added; "
                "resume with no other options, or choose another --out"
            )
        return replace(
            self,
            methods=tuple(dict.fromkeys((*self.methods, *other.methods))),
            seeds=tuple(dict.fromkeys((*self.seeds, *other.seeds))),
        )

    def summary(self, method: str) -> str:
        """One line about a method."""
        return methods.get(method).summary_with(self.recipe.predictor)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the comparison's file."""
        return {
            "recipe": self.recipe.to_dict(),
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "options": self.options.to_dict(),
            "origin": self.origin,
        }


def holds(path: Path) -> bool:
    """Whether a folder holds a comparison of this protocol."""
    return (path / FILE).exists()


def stored(path: Path) -> BudgetSettings:
    """The settings of the comparison in a folder.

    Raises:
        RunFolderError: When the folder holds none, or one that cannot be used.
    """
    if not holds(path):
        other = "a comparison of another protocol" if (path / "compare.json").exists() else "no comparison"
        raise RunFolderError(
            f"'{path}' holds {other}: name a folder that `adagp compare --protocol budget --out` wrote"
        )
    values = read_file(path / FILE)
    try:
        return BudgetSettings(
            recipe=Recipe.from_mapping({**values["recipe"]}),
            methods=tuple(values["methods"]),
            seeds=tuple(values["seeds"]),
            options=BudgetOptions.from_mapping(values["options"]),
            origin=str(values["origin"]),
        )
    except (KeyError, TypeError, RecipeError) as error:
        raise RunFolderError(
            f"'{path / FILE}' describes no comparison of this version of adagp ({error}): use the version that wrote "
            "it, or start in a new folder"
        ) from error


def store(settings: BudgetSettings, path: Path) -> BudgetSettings:
    """Write settings into a folder, or add their methods and seeds to those of the comparison in it.

    Raises:
        RunFolderError: When the folder holds something else.
    """
    for name in ("recipe.json", "compare.json"):
        if (path / name).exists():
            raise RunFolderError(f"folder '{path}' holds something else ({name}): choose another --out")
    with _locked(path):
        together = stored(path).with_parts(settings) if holds(path) else settings
        write_file(path / FILE, together.to_dict())
    return together


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    held = waiting_lock(path)
    try:
        yield
    finally:
        held.release()
