"""Real processes joined by gloo. They are started once and serve many tests: to start takes longer than most work."""

import logging
import multiprocessing
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import torch
from torch import distributed

LIMIT_SECONDS = 120


def on_ranks(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(rank, count, *args)` gives on each rank."""
    if count not in _standing:
        _standing[count] = _Ranks(count)
    ranks = _standing[count]
    try:
        return ranks.run(work, args)
    except BaseException:
        _standing.pop(count).end()
        raise


def on_leaving_ranks(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """The same in processes that end with their work, whoever still waits for their messages."""
    ranks = _Ranks(count)
    try:
        return ranks.run(work, args, leave=True)
    finally:
        ranks.end()


def on_ranks_one_killed(count: int, killed: int, work: Callable[..., Any], *args: Any) -> tuple[list[Any], float]:
    """What the ranks give of which one kills itself, and the seconds from its death to the last answer."""
    ranks = _Ranks(count)
    try:
        for queue in ranks._work:
            queue.put((work, args, True))
        ranks._processes[killed].join(LIMIT_SECONDS)
        death = monotonic()
        answers = [ranks._results.get(timeout=LIMIT_SECONDS) for _ in range(count - 1)]
        assert not any(error for _, _, error in answers), answers
        return [result for _, result, _ in sorted(answers)], monotonic() - death
    finally:
        ranks.end()


@contextmanager
def logged() -> Iterator[list[str]]:
    """What `adagp` logs meanwhile on this rank, where no fixture can look."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("adagp").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("adagp").removeHandler(handler)


class _Ranks:
    """Processes that wait for work."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._results = context.Queue()
        self._work = [context.Queue() for _ in range(count)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._processes = [
            context.Process(target=_serve, args=(rank, count, port, queue, self._results), daemon=True)
            for rank, queue in enumerate(self._work)
        ]
        for process in self._processes:
            process.start()

    def run(self, work: Callable[..., Any], args: tuple[Any, ...], leave: bool = False) -> list[Any]:
        for queue in self._work:
            queue.put((work, args, leave))
        found = {}
        for _ in self._processes:
            rank, result, error = self._results.get(timeout=LIMIT_SECONDS)
            if error:
                raise RuntimeError(f"rank {rank}: {error}")
            found[rank] = result
        return [found[rank] for rank in range(len(self._processes))]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


_standing: dict[int, _Ranks] = {}


def _serve(rank: int, count: int, port: int, work: Any, results: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    leave = False
    while not leave:
        function, args, leave = work.get()
        try:
            results.put((rank, function(rank, count, *args), None))
        except Exception:
            results.put((rank, None, traceback.format_exc()))
