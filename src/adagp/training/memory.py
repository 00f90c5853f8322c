"""Peak memory of one batch."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that `work` holds at once, above what was allocated before it.

    On the CPU every allocation is followed with PyTorch's profiler, because the process's size says little about
    tensors. Freeing something allocated earlier is not seen there: start with gradients set to None.
    """
    if device.type != "cpu":
        return _accelerator_peak(work, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise reports on stderr that it starts
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
    """Keep the profiler's C++ side from writing to the user's terminal about blocks older than itself."""
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
