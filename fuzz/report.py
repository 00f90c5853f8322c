"""What was tried, how often, what held."""

import platform
import sys
import time
from collections import Counter, defaultdict
from importlib import metadata
from typing import Any

from fuzz.case import GOOD, Kind, Outcome
from fuzz.targets import TARGETS

_COLUMNS = (
    "target",
    "cases",
    "refused",
    "accepted",
    "tracebacks",
    "hangs",
    "code executed",
    "other failures",
    "seconds",
)
_NAMED = (Kind.TRACEBACK, Kind.HANG, Kind.EXECUTED)
_SHOWN = 40
_BEGIN, _END = "<!-- begin: made by python -m fuzz --docs -->", "<!-- end -->"


class Report:
    """Counts outcomes; `planned` tells how many of each target are to come."""

    def __init__(self, seed: int, planned: dict[str, int]) -> None:
        self._seed, self._planned = seed, planned
        self._started = time.monotonic()
        self._outcomes: list[Outcome] = []

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    @property
    def failures(self) -> list[Outcome]:
        """In the order they came."""
        return [outcome for outcome in self._outcomes if outcome.kind not in GOOD]

    @property
    def held(self) -> bool:
        """Whether every case was refused with a message or accepted as it should be."""
        return not self.failures

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self._outcomes.append(outcome)

    def tell(self, outcome: Outcome) -> None:
        """Where a failure is the first of its kind, say so at once."""
        if outcome.kind in GOOD or outcome.signature in {each.signature for each in self._outcomes[:-1]}:
            return
        print(f"{outcome.signature}: {self._replay(outcome)}", file=sys.stderr, flush=True)

    def progress(self, most_seconds: float) -> None:
        """A line that is written over, or now and then a new one where it cannot be."""
        done, all_cases = len(self._outcomes), sum(self._planned.values())
        left = min(self.seconds / done * (all_cases - done), max(0.0, most_seconds - self.seconds))
        line = f"{done:,} of {all_cases:,} cases, {len(self.failures)} failures, about {left:.0f} s left"
        if sys.stderr.isatty():
            print(f"\r{line}\x1b[K", end="" if done < all_cases else "\n", file=sys.stderr, flush=True)
        elif done % 500 == 0:
            print(line, file=sys.stderr, flush=True)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each target, and the sum."""
        rows = []
        for name in self._planned:
            mine = [outcome for outcome in self._outcomes if outcome.target == name]
            rows.append(_row(name, mine))
        return [*rows, _row("all", self._outcomes)]

    def kills(self) -> dict[str, int]:
        """What the killed runs counted."""
        total: Counter[str] = Counter()
        for outcome in self._outcomes:
            if outcome.target == "kills":
                total.update(outcome.counts)
                total["bit for bit"] += outcome.kind is Kind.ACCEPTED
                total["runs"] += 1
        return dict(total)

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seed": self._seed,
            "seconds": self.seconds,
            "targets": self.rows(),
            "kills": self.kills(),
            "failures": [
                {
                    "replay": self._replay(outcome),
                    "kind": outcome.kind.value,
                    "about": outcome.about,
                    "signature": outcome.signature,
                    "detail": outcome.detail,
                }
                for outcome in self.failures
            ],
        }

    def text(self) -> str:
        """For people: failures by their likely cause, then the table."""
        groups: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in self.failures:
            groups[f"{outcome.target}: {outcome.signature}"].append(outcome)
        lines = []
        for name, group in sorted(groups.items(), key=lambda item: -len(item[1]))[:_SHOWN]:
            last = group[0].detail.strip().splitlines()[-1:] or [""]
            lines += [
                f"{len(group)} x {name}",
                f"  {group[0].about}",
                f"  {last[0][:300]}",
                f"  {self._replay(group[0])}",
            ]
        lines += [f"and {len(groups) - _SHOWN} causes more: see --json"] if len(groups) > _SHOWN else []
        rows = [list(_COLUMNS), *(list(map(str, row.values())) for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)]
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills().items()))
        lines += [f"kills: {kills}"] if kills else []
        return "\n".join([*lines, f"seed {self._seed}, {self.seconds:.0f} s"])

    def into(self, page: str) -> str:
        """A page of the documentation with this report between its marks."""
        before, begin, rest = page.partition(_BEGIN)
        _, end, after = rest.partition(_END)
        if not begin or not end:
            raise ValueError(f"the page has no place for the table: write the lines {_BEGIN} and {_END} into it")
        return f"{before}{begin}\n{self.markdown()}{end}{after}"

    def markdown(self) -> str:
        """The table for the documentation, and what it was measured with."""
        lines = [f"| {' | '.join(_COLUMNS)} |", f"|---|{'---:|' * (len(_COLUMNS) - 1)}"]
        for row in self.rows():
            name = TARGETS[row["target"]].about if row["target"] in TARGETS else "**all**"
            lines.append(f"| {name} | " + " | ".join(f"{figure:,}" for figure in list(row.values())[1:]) + " |")
        kills = self.kills()
        struck = {name: count for name, count in kills.items() if name.startswith("SIG")}
        if struck:
            signals = ", ".join(f"{count} by {name}" for name, count in sorted(struck.items()))
            times, runs, same = sum(struck.values()), kills["runs"], kills["bit for bit"]
            lines += ["", f"{runs} runs were stopped {times} times ({signals}) and resumed each time."]
            lines += [
                f"{same} of {runs} ended bit for bit as the run that nobody stopped, with the same files in the folder."
            ]
        versions = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
        lines += [
            "",
            f"Seed {self._seed}, {self.seconds:.0f} s, {versions}; the seconds are those of all cases together.",
        ]
        return "\n".join(lines) + "\n"

    def _replay(self, outcome: Outcome) -> str:
        return f"python -m fuzz --replay {outcome.target}/{self._seed}/{outcome.index}"


def _row(name: str, outcomes: list[Outcome]) -> dict[str, Any]:
    kinds = Counter(outcome.kind for outcome in outcomes)
    return {
        "target": name,
        "cases": len(outcomes),
        "refused": kinds[Kind.REFUSED],
        "accepted": kinds[Kind.ACCEPTED],
        "tracebacks": kinds[Kind.TRACEBACK],
        "hangs": kinds[Kind.HANG],
        "code_executed": kinds[Kind.EXECUTED],
        "other_failures": sum(count for kind, count in kinds.items() if kind not in (*GOOD, *_NAMED)),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
    }
