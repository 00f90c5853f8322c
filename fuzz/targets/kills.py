"""Runs killed at any moment, resumed, killed again, and in the end compared with the run that nobody killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from adagp.training.run import checkpoint
from fuzz.case import Case, Failed, Kind, Target
from fuzz.commands import adagp, in_child, same, same_weights

# A checkpoint after every batch: as many writes as can be hit.
_RUN = (
    *("train", "--data", "digits", "--model", "cnn", "--method", "adagp", "--epochs", "8", "--batch-size", "32"),
    *("--train-limit", "320", "--test-limit", "32", "--set", "threads=1", "--checkpoint-seconds", "0", "--json"),
)
_SIGNALS = (signal.SIGKILL,) * 5 + (signal.SIGINT, signal.SIGTERM)
_FRESH_SHARE = 0.08
_ANSWER_SECONDS = 20.0
Start = Callable[[Path], int]


def _make(draw: random.Random, templates: Path) -> Case:
    fresh = draw.random() < _FRESH_SHARE
    # Each run goes on where the one before was killed, so that the moments share the time of the whole.
    strikes = draw.randint(3, 6)
    moments = [(draw.choice(_SIGNALS), 1.5 * draw.random() / strikes) for _ in range(strikes)]
    counts: dict[str, int] = {}
    return Case(
        f"{'fresh processes' if fresh else 'forked'}: {', '.join(f'{sign.name} at {at:.2f}' for sign, at in moments)}",
        lambda: _killed(_fresh if fresh else _forked, moments, 6.0 if fresh else _whole_seconds(templates), counts),
        lambda: _differs(templates),
        counts=counts,
    )


def _killed(start: Start, moments: list[tuple[signal.Signals, float]], whole: float, counts: dict[str, int]) -> None:
    """Start, strike, resume, strike, ... and let it finish."""
    log = Path("log")
    for sign, at in moments:
        process = start(log)
        time.sleep(at * whole)
        os.kill(process, sign)
        struck = time.monotonic()
        code = _wait(process)
        ended = time.monotonic() - struck
        counts[sign.name] = counts.get(sign.name, 0) + (code != 0)  # else it had finished before
        if "Traceback (most recent call last)" in log.read_text():
            raise Failed(Kind.TRACEBACK, f"{sign.name} at {at * whole:.2f} s: {log.read_text()[-3000:]}")
        if code is None or (code == 0 and ended > _ANSWER_SECONDS / 2):
            raise Failed(Kind.HANG, f"{sign.name} at {at * whole:.2f} s was ignored for {ended:.1f} s")
        if code == 0:
            break
    process = start(log)
    if _wait(process, patience=60) != 0:
        raise Failed(Kind.WRONG, f"it could not be resumed: {log.read_text()[-3000:]}")
    counts["resumed to the end"] = 1


def _forked(log: Path) -> int:
    """The command in a copy of this process, which has imported everything already."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            _redirect(log)
            adagp(*_RUN, "--out", "run", "--resume")
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
        except KeyboardInterrupt as error:  # before the command began, or through it: only that is its fault
            code = 130
            if _within_adagp(error):
                sys.excepthook(type(error), error, error.__traceback__)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return process


def _fresh(log: Path) -> int:
    """The command as a user starts it."""
    with log.open("w") as file:
        words = [sys.executable, "-m", "adagp", *_RUN, "--out", "run", "--resume"]
        return subprocess.Popen(words, stdout=file, stderr=file, start_new_session=False).pid


def _redirect(log: Path) -> None:
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(opened, 1)
    os.dup2(opened, 2)


def _within_adagp(error: BaseException) -> bool:
    place = error.__traceback__
    while place is not None:
        if "adagp" in Path(place.tb_frame.f_code.co_filename).parts:
            return True
        place = place.tb_next
    return False


def _wait(process: int, patience: float = _ANSWER_SECONDS) -> int | None:
    """The exit code; None for a process that does not end, which is then killed."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _differs(templates: Path) -> str | None:
    run, whole = Path("run"), templates / "run"
    if not same_weights(run / "model.pt", whole / "model.pt"):
        return "ended with other weights"
    if not same(checkpoint.load(run / "checkpoint.pt"), checkpoint.load(whole / "checkpoint.pt")):
        return "ended with another state"
    for name in ("result.json", "metrics.json", "quality.json", "recipe.json"):
        if not same(*(json.loads((folder / name).read_text()) for folder in (run, whole))):
            return f"ended with another {name}"
    names, wanted = (sorted(path.name for path in folder.iterdir()) for folder in (run, whole))
    if names != wanted:
        raise Failed(Kind.LITTER, f"bit for bit, but with other files: {', '.join(sorted(set(names) ^ set(wanted)))}")
    return None


def _whole_seconds(templates: Path) -> float:
    return float((templates / "seconds").read_text())


def _prepare(folder: Path) -> None:
    for out in ("warm", "run"):  # the first is slower than those that will be killed
        started = time.monotonic()
        if in_child(lambda out=out: adagp(*_RUN, "--out", out), folder) != 0:  # type: ignore[misc]
            raise RuntimeError("the run does not work even where nobody kills it")
        (folder / "seconds").write_text(str(time.monotonic() - started))


TARGET = Target("kills", "runs killed and resumed", 40, _make, _prepare, limit_seconds=240)
