"""Runs cases, each in a forked process of its own with a folder, a time limit and a memory limit, and judges them.

Forked, because importing torch takes seconds and a case milliseconds. A case can hang, crash or eat its memory, and
the next one starts from the same state.
"""

import contextlib
import faulthandler
import json
import os
import re
import resource
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.case import GOOD, Case, Failed, Kind, Outcome, Target, random_of

MEMORY_BYTES = 3 << 30
"""Address space a case may add; a machine with less memory is not brought down by it."""
_GRACE_SECONDS = 1.0
_LONGEST = 8_000  # characters: with all of them escaped, the answer still fits into a pipe


@dataclass(frozen=True)
class _Running:
    target: Target
    index: int
    process: int
    base: Path
    pipe: int
    started: float


class Sandbox:
    """Runs cases of one seed below a folder of its own."""

    def __init__(self, scratch: Path, seed: int, jobs: int) -> None:
        """`jobs` cases run side by side."""
        self._scratch, self._seed, self._jobs = scratch, seed, jobs
        self._resident = _memory_bytes()[1]  # not the peak, which a process inherits from the one that started it

    def templates(self, target: Target) -> Path:
        """The folder that the target's `prepare` fills."""
        return self._scratch / "templates" / target.name

    def prepare(self, target: Target) -> None:
        """Once, before any case of the target."""
        folder = self.templates(target)
        folder.mkdir(parents=True)
        target.prepare(folder)

    def run(self, cases: Iterator[tuple[Target, int]], *, keep: bool = False) -> Iterator[Outcome]:
        """The outcomes of cases, as they come; `keep` their folders."""
        running: dict[int, _Running] = {}
        waiting = iter(cases)
        with selectors.DefaultSelector() as selector:
            while True:
                while len(running) < self._jobs and (following := next(waiting, None)) is not None:
                    case = self._start(*following)
                    running[case.pipe] = case
                    selector.register(case.pipe, selectors.EVENT_READ)
                if not running:
                    return
                ended = {key.fd for key, _ in selector.select(timeout=0.2)}
                slower = max(1.0, os.getloadavg()[0] / self._jobs)  # others at work make nothing a hang
                late = {
                    pipe
                    for pipe, case in running.items()
                    if time.monotonic() - case.started > case.target.limit_seconds * slower
                }
                for pipe in ended | late:
                    selector.unregister(pipe)
                    case = running.pop(pipe)
                    yield self._end(case, hangs=pipe not in ended)
                    if not keep:
                        shutil.rmtree(case.base, ignore_errors=True)

    def _start(self, target: Target, index: int) -> _Running:
        base = self._scratch / f"{target.name}-{index}"
        (base / "work").mkdir(parents=True)
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            os.close(reading)
            _child(target, random_of(target.name, self._seed, index), base, self.templates(target), writing)
        os.close(writing)
        return _Running(target, index, process, base, reading, time.monotonic())

    def _end(self, case: _Running, *, hangs: bool) -> Outcome:
        if hangs:
            with contextlib.suppress(ProcessLookupError):  # where does it hang?
                os.kill(case.process, signal.SIGUSR1)
            time.sleep(_GRACE_SECONDS)
            answer = b""
        else:
            with open(case.pipe, "rb", closefd=False) as pipe:
                answer = pipe.read()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(case.process, signal.SIGKILL)
        os.close(case.pipe)
        _, status, usage = os.wait4(case.process, 0)
        told: dict[str, Any] = json.loads(answer) if answer else {}
        kind, detail = Kind(told.get("kind", "crash")), told.get("detail", "")
        if hangs:
            kind, detail = Kind.HANG, _tail(case.base / "stderr")
        elif not answer:
            detail = f"ended by {os.waitstatus_to_exitcode(status)}: {_tail(case.base / 'stderr')}"
        elif kind in GOOD:
            kind, detail = self._aftermath(case, kind, detail, usage.ru_maxrss * 1024)
        if (case.base / "canary").exists():
            kind, detail = Kind.EXECUTED, "the canary is there"
        return Outcome(
            case.target.name,
            case.index,
            kind,
            _text(case.base / "about"),
            detail,
            told.get("signature") or signature(kind, detail),
            time.monotonic() - case.started,
            told.get("counts", {}),
        )

    def _aftermath(self, case: _Running, kind: Kind, detail: str, resident: int) -> tuple[Kind, str]:
        """What the case took of the memory and left on the disk."""
        if resident - self._resident > case.target.memory_bytes:
            return Kind.MEMORY, f"took {(resident - self._resident) >> 20} MB of memory ({detail})"
        left = list(case.base.rglob("*"))
        outside = [path for path in (*left, *self._scratch.glob("*")) if path.name.startswith("escaped")]
        if outside:
            return Kind.ESCAPED, f"{outside[0].name} was written"
        parts = [path.name for path in left if path.name.endswith(".part")]
        return (Kind.LITTER, f"left {parts[0]}") if parts else (kind, detail)


def _child(target: Target, draw: Any, base: Path, templates: Path, writing: int) -> None:
    """The whole life of a forked process: make the case, run it, tell how it went."""
    try:
        _confine(base)
        case = target.make(draw, templates)
        (base / "about").write_text(case.about, encoding="utf-8", errors="backslashreplace")
        told = _judge(case, base)
    except BaseException:  # the harness itself is wrong, which must not pass for a good case
        told = {"kind": Kind.CRASH.value, "detail": f"the harness failed: {traceback.format_exc()}"[-_LONGEST:]}
    os.write(writing, json.dumps(told).encode())
    os._exit(0)


def _confine(base: Path) -> None:
    os.setsid()
    os.chdir(base / "work")
    for place in ("HOME", "XDG_CACHE_HOME", "ADAGP_CACHE", "TMPDIR"):
        (base / "home").mkdir(exist_ok=True)
        os.environ[place] = str(base / "home")
    os.environ.pop("ADAGP_DATA", None)
    for descriptor, name in ((0, os.devnull), (1, base / "stdout"), (2, base / "stderr")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a script runs in the background
    resource.setrlimit(resource.RLIMIT_AS, (_memory_bytes()[0] + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _memory_bytes() -> tuple[int, int]:
    """The address space and the resident memory of this process."""
    total, resident, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return total * resource.getpagesize(), resident * resource.getpagesize()


def _judge(case: Case, base: Path) -> dict[str, Any]:
    stopped: list[int] = []

    def stop(number: int, frame: Any) -> None:
        stopped.append(number)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGALRM, stop)
    # Again after a while: the first Ctrl-C may be an order to stop at the next opportunity, the second is one to stop.
    signal.setitimer(signal.ITIMER_REAL, case.stop_seconds or 0, 2.0)
    code: Any = 0
    try:
        case.run()
    except SystemExit as done:
        code = done.code or 0
    except Failed as failure:
        return _told(failure.kind, str(failure), case)
    except BaseException as error:
        return _told(Kind.TRACEBACK, traceback.format_exc(), case, signature=_place(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.flush()
        sys.stderr.flush()
    said = _text(base / "stderr")
    if "Traceback (most recent call last)" in said:
        return _told(Kind.TRACEBACK, said, case)
    if stopped:
        return _told(Kind.ACCEPTED, f"still at work after {case.stop_seconds:g} s, stopped by Ctrl-C", case)
    if code == 0:
        if case.must_refuse:
            return _told(Kind.WRONG, "was accepted", case)
        try:
            complaint = case.complain()
        except Failed as failure:
            return _told(failure.kind, str(failure), case)
        except Exception:
            complaint = traceback.format_exc()
        return _told(Kind.WRONG, complaint, case) if complaint else _told(Kind.ACCEPTED, "", case)
    message = [line for line in said.splitlines() if line.strip() and line.strip(". !") != "Aborted"]
    if code not in (1, 2) or not message:
        return _told(Kind.MUTE, f"exit code {code}, and said: {said.strip()!r}", case)
    return _told(Kind.REFUSED, message[-1], case)


def _told(kind: Kind, detail: str, case: Case, *, signature: str = "") -> dict[str, Any]:
    return {"kind": kind.value, "detail": detail[-_LONGEST:], "signature": signature, "counts": case.counts}


def _place(error: BaseException) -> str:
    """The kind of the error and the last lines of ours that it went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "adagp" in Path(frame.filename).parts]
    return f"{type(error).__name__} at " + " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-2:])
    )


def signature(kind: Kind, detail: str) -> str:
    """The failure without what differs from case to case: the last of our own lines in a traceback, or the text."""
    places = re.findall(r'File "[^"]*adagp/([^"]+)", line (\d+)', detail)
    if places:
        first, last = places[0], places[-1]
        place = first if kind is Kind.HANG else last  # of a hang the innermost line comes first
        return f"{kind.value} at {place[0]}:{place[1]}"
    return f"{kind.value}: " + re.sub(r"\d+", "N", detail.strip().splitlines()[-1] if detail.strip() else "")[:80]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _tail(path: Path) -> str:
    return _text(path)[-4000:]
