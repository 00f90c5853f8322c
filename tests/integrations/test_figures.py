"""What integrations log."""

from statistics import fmean

import pytest

from adagp import AdaGP, schedules
from adagp.integrations.figures import log_figures
from tests.nets import batches, build, loss_of, sgd


def test_counts_and_mean_quality() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1))
    assert log_figures(gp) == {}
    for x, y in batches(6):
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    figures = log_figures(gp)
    quality = gp.quality().values()
    assert figures.pop("adagp_cosine") == pytest.approx(fmean(one.cosine for one in quality))
    assert figures.pop("adagp_norm_ratio") == pytest.approx(fmean(one.norm_ratio for one in quality))
    assert figures == {f"adagp_{name}": count for name, count in gp.counts().items()}
