"""Sources: where a layer's gradient comes from in one batch.

`None` and `0` differ. `skip` leaves `.grad` None: the optimizer does not touch the weight. `zero` writes zeros:
momentum and weight decay still move it. A source that has nothing to give yet returns None and counts as `skip`.
A source speaks for the whole layer, its weight and its bias.
"""

from adagp.sources.backprop import Backprop
from adagp.sources.local import Local
from adagp.sources.noise import Random
from adagp.sources.predicted import Predicted
from adagp.sources.registry import build, register, unregister
from adagp.sources.remembered import Last, Mean, Remembered
from adagp.sources.sampled import Sampled
from adagp.sources.skip import Skip
from adagp.sources.source import GradientRequest, Source
from adagp.sources.topk import TopK
from adagp.sources.zero import Zero

__all__ = [
    "Backprop",
    "GradientRequest",
    "Last",
    "Local",
    "Mean",
    "Predicted",
    "Random",
    "Remembered",
    "Sampled",
    "Skip",
    "Source",
    "TopK",
    "Zero",
    "build",
    "register",
    "unregister",
]
