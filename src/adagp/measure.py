"""How time and memory are measured: the clock, the number of CPU threads, and the peak memory of one batch."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def clock(device: torch.device) -> Callable[[], float]:
    """A clock in seconds that first waits for all work queued on `device`."""
    if device.type == "cpu":
        return time.perf_counter

    def synchronised() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return synchronised


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use `count` CPU threads inside; None changes nothing."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Peak bytes of tensors during `work`, above what was allocated before it.

    On the CPU, PyTorch's profiler records every allocation, because the size of the process says little about tensors.
    It does not see the release of earlier allocations: start with gradients set to None.
    """
    if device.type != "cpu":
        return _accelerator_peak(work, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler announces its start on stderr
    with _native_messages_off(), torch.autograd.profiler.profile(use_cpu=True, profile_memory=True) as profile:
        work()
    results = profile.kineto_results
    if results is None:
        raise RuntimeError("peak_bytes: the profiler gave no results; do not call it inside another profiler")
    changes = sorted(
        (event.start_ns(), index, event.nbytes())
        for index, event in enumerate(results.events())
        if event.name() == "[memory]"
    )
    held = peak = 0
    for _, _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def _native_messages_off() -> Iterator[None]:
    """Silence the profiler's C++ warnings about memory that was allocated before it started."""
    try:
        kept = os.dup(2)
    except OSError:  # a process without stderr
        yield
        return
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(silence)
        os.close(kept)


def _accelerator_peak(work: Callable[[], object], device: torch.device) -> int:
    module = torch.get_device_module(device)
    torch.accelerator.synchronize(device)
    before = int(module.memory_allocated(device))
    module.reset_peak_memory_stats(device)
    work()
    torch.accelerator.synchronize(device)
    return int(module.max_memory_allocated(device)) - before
