"""What the run folders of a comparison under the budget protocol say, however far it has come."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from adagp.files import parse_json, read_text
from adagp.training.budget.parts import Candidate, Part, choosing_parts, judged_part
from adagp.training.budget.reference import Reference
from adagp.training.budget.settings import BudgetSettings
from adagp.training.errors import RunFolderError
from adagp.training.run.folder import read_file, write_file

_TARGET = "target.json"


@dataclass(frozen=True)
class RunOutcome:
    """A finished run.

    Attributes:
        seed: Its seed.
        share: Its share of the budget.
        score: The metric after the last epoch.
        train_loss: Mean of the last epoch's batches with a true gradient; None without any.
        steps: Batches.
        seconds: Reference seconds of the run.
        clock_seconds: What the clock said while it trained, alone or beside other work.
        curve: Reference seconds and score after each epoch.
        diverged: Why it was given up; None if it was not.
    """

    seed: int
    share: float
    score: float
    train_loss: float | None
    steps: int
    seconds: float
    clock_seconds: float
    curve: tuple[tuple[float, float], ...]
    diverged: str | None


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder has come to its end."""
    return (folder / "result.json").exists()


def run_outcome(part: Part, reference: Reference, path: Path) -> RunOutcome | None:
    """The figures of one part; None while it is not finished."""
    folder = path / part.folder
    if not is_finished(folder):
        return None
    result, records = read_file(folder / "result.json"), _records(folder / "metrics.json")
    name = reference.metrics[0].name
    try:
        spent, curve = 0.0, []
        for record in records:
            spent += reference.seconds(part.candidate.cost, record["batches"])
            curve.append((spent, float(record["metrics"][name])))
        loss = records[-1]["train_loss"]
        return RunOutcome(
            seed=part.seed,
            share=part.share,
            score=curve[-1][1],
            train_loss=None if loss is None else float(loss),
            steps=int(result["steps"]),
            seconds=spent,
            clock_seconds=float(result["train_seconds"]),
            curve=tuple(curve),
            diverged=result["diverged"],
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise RunFolderError(
            f"'{folder}' holds no finished run of this comparison ({error!r}): remove the folder to run it again"
        ) from error


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        found = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"'{path}' cannot be read ({error}): remove its folder to run it again") from error
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise RunFolderError(f"'{path}' is no list of records: remove its folder to run it again")
    return found


def best_candidate(settings: BudgetSettings, reference: Reference, path: Path, method: str) -> Candidate | None:
    """The candidate of a method with the best score on the validation items; None while some have none.

    Candidates that diverged are left out; where all did, the lowest rate is taken.
    """
    found = [(part, run_outcome(part, reference, path)) for part in choosing_parts(settings, method)]
    scores = {}
    for part, outcome in found:
        if outcome is None:
            return None
        if outcome.diverged is None:
            scores[part.candidate] = outcome.score
    if not scores:
        return min((part.candidate for part, _ in found), key=lambda candidate: candidate.lr)
    best = reference.metrics[0].best(scores.values())
    return next(candidate for candidate, score in scores.items() if score == best)


def best_candidates(settings: BudgetSettings, reference: Reference, path: Path) -> dict[str, Candidate | None]:
    """The candidate of every method; None while its choice is not made."""
    return {name: best_candidate(settings, reference, path, name) for name in settings.methods}


def judged_runs(settings: BudgetSettings, reference: Reference, path: Path, candidate: Candidate) -> list[RunOutcome]:
    """The finished runs of a method at its chosen learning rate."""
    found = (
        run_outcome(judged_part(candidate, share, seed), reference, path)
        for seed in settings.seeds
        for share in settings.options.shares
    )
    return [outcome for outcome in found if outcome is not None]


@dataclass(frozen=True)
class Target:
    """The score to be reached: the mean of plain runs in one share of the budget.

    It is fixed when the plain runs of the first seeds are finished, and stays when seeds are added.
    """

    score: float
    share: float
    seeds: tuple[int, ...]


def target_of(settings: BudgetSettings, reference: Reference, path: Path, plain: Candidate | None) -> Target | None:
    """The target of a comparison; None while plain runs that it needs are missing."""
    if (path / _TARGET).exists():
        values = read_file(path / _TARGET)
        try:
            return Target(float(values["score"]), float(values["share"]), tuple(values["seeds"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"'{path / _TARGET}' holds no target: remove it to fix it again") from error
    if plain is None:
        return None
    share = settings.options.target_share
    found = [run_outcome(judged_part(plain, share, seed), reference, path) for seed in settings.seeds]
    scores = [outcome.score for outcome in found if outcome is not None]
    return Target(fmean(scores), share, settings.seeds) if len(scores) == len(settings.seeds) else None


def fix_target(settings: BudgetSettings, reference: Reference, path: Path, plain: Candidate | None) -> None:
    """Write the target down as soon as it is known."""
    if not (path / _TARGET).exists():
        target = target_of(settings, reference, path, plain)
        if target is not None:
            values = {"score": target.score, "share": target.share, "seeds": list(target.seeds)}
            write_file(path / _TARGET, values)
