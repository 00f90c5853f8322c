"""Learning-rate schedules as pure functions of progress, so that a shorter run decays just as fully."""

import math


def factor(schedule: str, progress: float, warmup: float = 0.0) -> float:
    """The share of the full learning rate in force at `progress` (0 at the first batch, towards 1 at the last).

    It rises from zero in the share `warmup` of the run, and the schedule has what is left. `plateau` is not a function
    of progress: it is driven by the test loss, and its factor here is 1.
    """
    if progress < warmup:
        return progress / warmup
    progress = (progress - warmup) / (1.0 - warmup)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule == "step":
        return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01
    if schedule == "exponential":
        return math.pow(0.01, progress)
    return 1.0
