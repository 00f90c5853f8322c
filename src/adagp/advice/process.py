"""The same training in another process, for settings that act only when a process starts.

A worker does one batch when asked, so that batches of several processes take turns in the rounds like all others.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

from adagp.user_code import one_line

READY = "ready"


class WorkerError(RuntimeError):
    """A worker did not start in time, or failed."""


class Worker:
    """A process that does batches; started at once, and killed when its `with` block ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it.

        Args:
            command: Runs a program that calls `serve`.
            environment: Variables to set beside those of this process.
        """
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self, seconds: float) -> None:
        """Wait until it has built the training.

        Raises:
            WorkerError: When that takes longer, or it fails.
        """
        self._read(seconds, "start")

    def step(self, patience: float) -> None:
        """Let it do one batch, in at most so many seconds.

        Raises:
            WorkerError: When that takes longer, or it fails.
        """
        asked = self._stream(self._process.stdin)
        with suppress(BrokenPipeError):  # it has ended; what it said before comes next
            asked.write("step\n")
            asked.flush()
        self._read(patience, "finish a batch")

    def _read(self, seconds: float, what: str) -> None:
        answers = self._stream(self._process.stdout)
        if not select.select([answers], [], [], max(seconds, 0.0))[0]:
            raise WorkerError(f"another process did not {what} within {seconds:.0f} s")
        line = answers.readline()
        answer = json.loads(line) if line else "another process ended"
        if answer != READY:
            raise WorkerError(answer)

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # what was asked of it too late
                self._stream(stream).close()


def serve(build: Callable[[], Callable[[], None]]) -> None:
    """Be a worker: build what does one batch, then do one for each line on stdin.

    What the user's code prints goes to stderr: stdout carries the answers.

    Args:
        build: Builds the training and returns a function that does a batch of it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(text: str) -> None:
        answers.write(json.dumps(text) + "\n")
        answers.flush()

    try:
        step = build()
        step()
        answer(READY)
        for _ in sys.stdin:
            step()
            answer(READY)
    except Exception as error:
        answer(one_line(error))
