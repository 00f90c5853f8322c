"""What a comparison compares, and how long each of its runs is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagp.training import methods
from adagp.training.comparison.verdict import REFERENCES
from adagp.training.errors import RecipeError, RunFolderError
from adagp.training.method_options import unused_options
from adagp.training.recipe import Recipe
from adagp.training.run.folder import read_file

# What a run of another length does to the learning rate, by the recipe's lr_schedule.
_RATES = {
    "cosine": "learning rate (cosine) decayed to zero within it",
    "step": "learning rate (step) decayed in full within it",
    "exponential": "learning rate (exponential) decayed to a hundredth within it",
    "constant": "learning rate constant, not decayed",
    "plateau": "learning rate lowered when the test loss stalls, not fitted to the length",
}


@dataclass(frozen=True)
class Settings:
    """What a comparison compares.

    Attributes:
        recipe: What all runs share. Method and seed are set per run, and steps too where time decides.
        methods: The methods.
        seeds: The seeds that each method runs with.
        budget_seconds: None gives all methods the same number of epochs (or steps). Otherwise all get these seconds of
            training; the ladder, and a learning rate that decays over the run, are stretched to what each can do in
            them.
    """

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    budget_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be compared, before anything is trained."""
        problems = [*self._method_problems(), *self._seed_problems(), *self._length_problems()]
        if problems:
            raise RecipeError("; ".join(problems))

    def _method_problems(self) -> list[str]:
        problems = []
        unknown = [name for name in self.methods if name not in methods.names()]
        if unknown:
            problems.append(f"unknown methods {', '.join(unknown)}: choose from {', '.join(methods.names())}")
        else:
            problems += unused_options(self.methods, self.recipe)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            problems.append("methods must name each method once, and at least one")
        chosen = self.recipe.predictor
        if "adagp-paper" in self.methods and chosen not in (None, methods.get("adagp-paper").predictor):
            problems.append(
                f"predictor = {chosen} contradicts method adagp-paper: leave out adagp-paper or the predictor"
            )
        return problems

    def _seed_problems(self) -> list[str]:
        problems = []
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            problems.append("seeds must name each seed once, and at least one")
        if any(type(seed) is not int or not 0 <= seed < 2**63 for seed in self.seeds):
            problems.append("seeds must be whole numbers from 0 to 2**63 - 1")
        return problems

    def _length_problems(self) -> list[str]:
        problems = []
        if self.budget_seconds is None:
            if "short-bp" in self.methods and not self.judged:
                problems.append(
                    f"short-bp gets the time of another method, but none of {', '.join(REFERENCES)} takes part: add one"
                )
            return problems
        if not 0 < self.budget_seconds < float("inf"):
            problems.append(f"budget = {self.budget_seconds} must be a positive number of seconds")
        if self.recipe.steps is not None:
            problems.append(
                f"steps = {self.recipe.steps} and a budget of seconds both set the length: give one of them"
            )
        return problems

    @property
    def judged(self) -> tuple[str, ...]:
        """The methods that are judged; short-bp gets the time of the slowest."""
        return tuple(name for name in REFERENCES if name in self.methods)

    @property
    def effective_methods(self) -> tuple[str, ...]:
        """The methods that run. Under a time budget, short-bp is the same as bp."""
        if self.budget_seconds is None:
            return self.methods
        names = tuple(name for name in self.methods if name != "short-bp")
        return names if "bp" in names else (*names, "bp") if "short-bp" in self.methods else names

    @property
    def protocol(self) -> str:
        """The protocol in words."""
        rate = _RATES[self.recipe.lr_schedule]
        if self.budget_seconds is not None:
            return f"{self.budget_seconds:g} s of training each, ladder stretched to it, {rate}"
        if self.recipe.steps is not None:
            length = f"{self.recipe.steps} batch{'es' if self.recipe.steps > 1 else ''} each"
        else:
            length = f"{self.recipe.epochs} epoch{'s' if self.recipe.epochs > 1 else ''} each"
        whose = self.judged[0] if len(self.judged) == 1 else "the slowest method judged"
        short = f" (short-bp: as many batches as fit into the time of {whose}, {rate})"
        return length + (short if "short-bp" in self.methods else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `compare.json`."""
        return {
            "recipe": self.recipe.to_dict(),
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "budget_seconds": self.budget_seconds,
        }

    def differences(self, other: "Settings") -> list[str]:
        """The fields that differ, as readable text."""
        different = self.recipe.differences(other.recipe)
        for name in ("methods", "seeds", "budget_seconds"):
            mine, theirs = getattr(self, name), getattr(other, name)
            different += [f"{name} {mine!r} against {theirs!r}"] if mine != theirs else []
        return different


def stored_settings(path: Path) -> Settings:
    """The settings of the comparison in a folder.

    Raises:
        RunFolderError: When `compare.json` is missing or cannot be used.
    """
    values = read_file(path / "compare.json")
    try:
        return Settings(
            recipe=Recipe.from_mapping({**values["recipe"]}),
            methods=tuple(values["methods"]),
            seeds=tuple(values["seeds"]),
            budget_seconds=values["budget_seconds"],
        )
    except (KeyError, TypeError, RecipeError) as error:
        raise RunFolderError(
            f"'{path / 'compare.json'}' describes no comparison of this version of adagp ({error}): use the version "
            "that wrote it, or start in a new folder"
        ) from error
