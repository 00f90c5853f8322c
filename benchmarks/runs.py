"""The finished runs of a study in one JSON file, so that the study continues where it was stopped."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adagp.files import write_json


class Runs:
    """Finished runs, each with the case that it answers."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        self._found = self._read()

    def _read(self) -> list[dict[str, Any]]:
        return json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else []

    def get(self, case: Any) -> dict[str, Any] | None:
        """The run of a case, a dataclass; None where it is missing."""
        wanted = _as_read(case)
        return next((run for run in self._found if run["case"] == wanted), None)

    def add(self, case: Any, run: dict[str, Any]) -> None:
        """Keep a finished run, beside those that other processes have added meanwhile."""
        self._found = self._read()
        self._found.append({"case": _as_read(case), **run})
        write_json(self._path, self._found)


def _as_read(case: Any) -> Any:
    """The case as the file gives it back: JSON has no tuples."""
    return json.loads(json.dumps(asdict(case)))
