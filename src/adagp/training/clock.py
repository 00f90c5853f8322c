"""The clock of all training measurements."""

import time
from collections.abc import Callable

import torch


def clock(device: torch.device) -> Callable[[], float]:
    """A clock in seconds that first waits for everything queued on `device`, so that no work is left out."""
    if device.type == "cpu":
        return time.perf_counter

    def synchronised() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return synchronised
