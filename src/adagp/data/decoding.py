"""Image files decoded by worker processes, in the order asked for, whatever the number of workers.

Each worker is a small program of its own (see `decode_worker`) spoken to by one thread over pipes: nothing is forked,
nothing is pickled, no shared memory can run out, and a thread that waits costs nothing.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from adagp.data.files import CorruptDataError
from adagp.extras import require

Fit = Literal["crop", "letterbox"]
WORKERS = min(4, os.cpu_count() or 1)
BATCHES_AHEAD = 2  # decoded while the model is at work; this bounds the memory
_SCRIPT = Path(__file__).with_name("decode_worker.py")


@dataclass(frozen=True)
class Placement:
    """Where an image of `width` x `height` pixels went in its square: scaled, then moved by `left` and `top`."""

    width: int
    height: int
    scaled_width: int
    scaled_height: int
    left: int
    top: int

    def to_square(self, boxes: Tensor) -> Tensor:
        """Boxes of the image, (N, 4) as x1 y1 x2 y2 in pixels, as boxes of the square."""
        old, new = self._sizes(boxes)
        # Multiplied first: so rounding takes no edge of the image out of the square.
        return boxes * new / old + self._shift(boxes)

    def to_image(self, boxes: Tensor) -> Tensor:
        """The inverse of `to_square`, for what was found in the square."""
        old, new = self._sizes(boxes)
        return (boxes - self._shift(boxes)) * old / new

    def _sizes(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Width and height of the image, before and after."""
        old, new = (self.width, self.height), (self.scaled_width, self.scaled_height)
        return like.new_tensor(old * 2), like.new_tensor(new * 2)

    def _shift(self, like: Tensor) -> Tensor:
        return like.new_tensor([self.left, self.top] * 2)


@dataclass(frozen=True)
class Decoded:
    """One image's pixels, (size, size, 3) uint8, and where they come from."""

    pixels: Tensor
    placement: Placement


def decode_batches(
    batches: Iterable[Sequence[Path]], size: int, fit: Fit, workers: int = WORKERS
) -> Iterator[list[Decoded]]:
    """Decode batch after batch of files, a little ahead of what is asked for.

    Args:
        batches: the files of each batch.
        size: width and height of the results.
        fit: `crop` scales the shorter side to `size` and takes the middle; `letterbox` scales the longer side and puts
            grey around.
        workers: how many processes decode; they are started once and kept for later calls.

    Raises:
        CorruptDataError: for a file that cannot be decoded, naming it, when its batch is asked for.
    """
    decoders = _decoders(os.getpid(), workers)
    pending: deque[list[Future[Decoded]]] = deque()
    try:
        for paths in batches:
            pending.append([decoders.submit(path, size, fit) for path in paths])
            if len(pending) > BATCHES_AHEAD:
                yield [future.result() for future in pending.popleft()]
        while pending:
            yield [future.result() for future in pending.popleft()]
    finally:
        for futures in pending:
            for future in futures:
                future.cancel()


class _Decoders:
    """A pool of threads, each with a worker process of its own that starts on the first request."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="adagp-decode")
        self._own = threading.local()
        self._workers: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _stop_all, os.getpid(), self._workers)  # at the latest when the interpreter ends

    def submit(self, path: Path, size: int, fit: Fit) -> Future[Decoded]:
        # Absolute, since the worker stays in the folder it was started in while the program may have moved on.
        return self._threads.submit(self._decode, path, path.absolute(), size, fit)

    def _decode(self, path: Path, absolute: Path, size: int, fit: Fit) -> Decoded:
        worker: subprocess.Popen[bytes] | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = _start()
            self._workers.append(worker)
        assert worker.stdin is not None
        assert isinstance(worker.stdout, io.BufferedReader)
        try:
            worker.stdin.write(json.dumps({"path": str(absolute), "size": size, "fit": fit}).encode() + b"\n")
            worker.stdin.flush()
            head = json.loads(worker.stdout.readline())
            pixels = bytearray(0 if "error" in head else size * size * 3)
            if worker.stdout.readinto(pixels) != len(pixels):
                raise EOFError
        except (OSError, EOFError, ValueError) as error:
            self._own.worker = None  # the next request gets a new one
            self._workers.remove(worker)
            _stop(worker)
            raise CorruptDataError(
                f"{path}: the process that decoded it ended (exit code {worker.returncode}); if there was not enough"
                " memory, lower batch_size, else get the file again"
            ) from error
        if "error" in head:
            raise CorruptDataError(f"{path}: cannot be decoded ({head['error']}); get the file again or remove it")
        return Decoded(torch.frombuffer(pixels, dtype=torch.uint8).view(size, size, 3), Placement(**head))


@cache
def _decoders(process: int, workers: int) -> _Decoders:
    """One pool for all data sets; a forked child gets its own, since two cannot share a pipe."""
    del process
    if workers < 1:
        raise ValueError(f"workers: must be at least 1, got {workers}")
    require("PIL")
    return _Decoders(workers)


def _start() -> subprocess.Popen[bytes]:
    # -P: the script's own folder is not searched for modules, or those of `adagp.data` would hide Python's.
    return subprocess.Popen([sys.executable, "-P", str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _stop_all(process: int, workers: list[subprocess.Popen[bytes]]) -> None:
    if process == os.getpid():  # a forked child has a copy of the list, but the workers are not its own
        for worker in workers:
            _stop(worker)


def _stop(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was not sent cannot be any more
                pipe.close()
    worker.wait()
