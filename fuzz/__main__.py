"""`python -m fuzz`: mutated inputs by the thousand, runs killed and resumed, and a table of what held."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Forked processes must not inherit threads, which do not survive a fork; libraries read these when they are imported.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

from fuzz.case import GOOD, Target
from fuzz.commands import warm_up
from fuzz.report import Report
from fuzz.sandbox import Sandbox
from fuzz.targets import TARGETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 where something did not hold."""
    options = _options(arguments)
    if options.replay:
        return _replay(*options.replay)
    chosen = [TARGETS[name] for name in options.target or TARGETS]
    counts = _counts(chosen, options.cases, options.kills)
    scratch = Path(tempfile.mkdtemp(prefix="adagp-fuzz-"))
    try:
        sandbox = Sandbox(scratch, options.seed, options.jobs)
        with _silence(scratch):
            warm_up(scratch)
            for target in chosen:
                sandbox.prepare(target)
        report = Report(options.seed, counts)
        for outcome in sandbox.run(_cases(chosen, counts, report, options.seconds)):
            report.add(outcome)
            if not options.quiet:
                report.tell(outcome)
                report.progress(options.seconds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if options.docs:
        options.docs.write_text(report.into(options.docs.read_text(encoding="utf-8")), encoding="utf-8")
    print(json.dumps(report.plain()) if options.json else report.text())
    return 0 if report.held else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, help="of all targets together, kills aside; default: each target's own")
    parser.add_argument(
        "--kills", type=int, help=f"runs to kill, three to six times each; default: {TARGETS['kills'].cases}"
    )
    parser.add_argument("--seconds", type=float, default=900, help="start no case after this time; default: 900")
    parser.add_argument("--seed", type=int, default=0, help="other cases; default: 0")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--replay", type=_place, metavar="TARGET/SEED/INDEX", help="one case, with all that it says")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases side by side")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--docs", type=Path, help="also put the table into this page, between its marks")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(arguments)


def _place(text: str) -> tuple[Target, int, int]:
    name, _, numbers = text.partition("/")
    seed, _, index = numbers.partition("/")
    if name not in TARGETS or not (seed.isdecimal() and index.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' is no case; write for example recipes/0/12")
    return TARGETS[name], int(seed), int(index)


def _counts(chosen: Sequence[Target], cases: int | None, kills: int | None) -> dict[str, int]:
    """How many cases of each target; fewer in all keep their proportions."""
    counts = {target.name: target.cases for target in chosen}
    others = sum(count for name, count in counts.items() if name != "kills")
    if cases is not None and others:
        counts |= {name: max(1, round(cases * count / others)) for name, count in counts.items() if name != "kills"}
    if kills is not None and "kills" in counts:
        counts["kills"] = kills
    return counts


def _cases(
    chosen: Sequence[Target], counts: dict[str, int], report: Report, seconds: float
) -> Iterator[tuple[Target, int]]:
    """The targets in turns, so that whatever ends the run early takes from all alike."""
    order = sorted(
        (index / counts[target.name], place, index)
        for place, target in enumerate(chosen)
        for index in range(counts[target.name])
    )
    for _, place, index in order:
        if report.seconds > seconds:
            return
        yield chosen[place], index


def _replay(target: Target, seed: int, index: int) -> int:
    scratch = Path(tempfile.mkdtemp(prefix="adagp-fuzz-"))
    sandbox = Sandbox(scratch, seed, 1)
    with _silence(scratch):
        warm_up(scratch)
        sandbox.prepare(target)
    outcome = next(sandbox.run(iter([(target, index)]), keep=True))
    print(f"{outcome.about}\n{outcome.kind.value}: {outcome.detail}\n{outcome.counts or ''}")
    print(f"its folder, with all it said: {scratch / f'{target.name}-{index}'}")
    return 0 if outcome.kind in GOOD else 1


@contextmanager
def _silence(scratch: Path) -> Iterator[None]:
    """What preparing prints goes to a file: only its failures are of interest, and they are raised."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    opened = os.open(scratch / "prepare.log", os.O_WRONLY | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(opened, descriptor)
    os.close(opened)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, before in zip((1, 2), kept, strict=True):
            os.dup2(before, descriptor)
            os.close(before)


if __name__ == "__main__":
    sys.exit(main())
