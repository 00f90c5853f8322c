"""When a cheaper gradient pays: the progress it keeps against the time it saves. `docs/advise.md` derives the formulas.

A batch by backpropagation takes time 1 and makes progress 1. The replaced part takes `w` of the time, and a share `p`
of it is still computed.
"""

from math import sqrt


def saved_share(w: float, p: float) -> float:
    """The share of a batch's time that is saved."""
    return w * (1 - p)


def most_added_variance(saved: float) -> float:
    """The largest `s` at which an unbiased gradient pays, where noise limits progress.

    `s` is the added variance over that of the mini-batch. A batch then makes 1 / (1 + s) of the progress in 1 - saved
    of the time.
    """
    return saved / (1 - saved) if saved < 1 else float("inf")


def least_cosine(saved: float) -> float:
    """The cosine with the exact gradient above which any other gradient pays: a step makes cosine^2 of the progress."""
    return sqrt(max(1 - saved, 0.0))


def kept_progress(cosine: float, added_variance: float | None, unbiased: bool) -> float:
    """The progress of a step, that of the exact one being 1.

    Args:
        cosine: With the exact gradient of the same batch.
        added_variance: Over that of the mini-batch; None where it is not known.
        unbiased: Whether noise is all that it adds.
    """
    if unbiased and added_variance is not None:
        return 1 / (1 + added_variance)
    return max(cosine, 0.0) ** 2
