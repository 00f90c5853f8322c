from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import Runs


@dataclass(frozen=True)
class Case:
    levels: tuple[tuple[float, float], ...]


def test_a_finished_run_is_found_again(tmp_path: Path) -> None:
    """A tuple in a case comes back from JSON as a list."""
    file, case = tmp_path / "runs.json", Case(((0.5, 0.6), (1.0, 0.4)))
    runs = Runs(file)
    runs.add(case, {"accuracy": 1.0})
    for known in (runs, Runs(file)):
        found = known.get(case)
        assert found is not None
        assert found["accuracy"] == 1.0
        assert known.get(Case(((1.0, 1.0),))) is None
