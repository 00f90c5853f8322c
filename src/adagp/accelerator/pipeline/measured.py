"""The bubbles of a pipeline whose layers `adagp.advise` has measured."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.pipeline.stages import balanced_cuts
from adagp.accelerator.pipeline.tasks import Pipeline
from adagp.accelerator.pipeline.timeline import simulate
from adagp.advice import Advice
from adagp.schedules import Phase

GP_BATCHES = 4
"""GP batches to each BP batch in the bound: the most of the paper's ladder."""


@dataclass(frozen=True)
class PipelineFinding:
    """A training cut into stages, one for each device.

    Attributes:
        scheme: How micro-batches are ordered.
        devices: Devices, and as many stages.
        microbatches: Micro-batches in a batch.
        starts: The first layer of each stage.
        imbalance: Length of the longest stage over the mean length.
        bubbles: Share of the devices' time in which they wait, in batches by backpropagation.
        speed_up: Over one device.
        gp_speed_up: The most that predictions could add, at four GP batches to each BP batch: the predictor costs
            nothing here.
    """

    scheme: str
    devices: int
    microbatches: int
    starts: tuple[str, ...]
    imbalance: float
    bubbles: float
    speed_up: float
    gp_speed_up: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "starts": list(self.starts)}


def measured(advice: Advice, devices: int, microbatches: int, scheme: str = "gpipe") -> PipelineFinding:
    """What a pipeline of as many devices like this one would leave idle.

    Stages are cut between layers, as evenly as their measured seconds allow. What belongs to no layer, such as norms
    and activations, is shared out in proportion. A micro-batch takes its share of a batch, and messages take no time:
    the bubbles of a real pipeline are larger.

    Args:
        advice: What was measured.
        devices: Devices, and as many stages.
        microbatches: Micro-batches in a batch.
        scheme: One of `SCHEMES`, but not `local`, which has no exact gradients.

    Raises:
        ValueError: When no layer was measured, there are fewer layers than devices, or the scheme cannot have them.
    """
    if not advice.layers:
        raise ValueError("pipeline: no layer was measured; give more seconds, or a model with Conv or Linear layers")
    forward = _scaled([layer.forward_seconds for layer in advice.layers], advice.phases["forward"] / microbatches)
    gradients = [layer.input_gradient_seconds + layer.weight_gradient_seconds for layer in advice.layers]
    backward = _scaled(gradients, advice.phases["backward"] / microbatches)
    shares = [
        layer.weight_gradient_seconds / (whole or 1.0) for layer, whole in zip(advice.layers, gradients, strict=True)
    ]
    weights = [share * whole for share, whole in zip(shares, backward, strict=True)]
    cuts = balanced_cuts([ahead + back for ahead, back in zip(forward, backward, strict=True)], devices)
    ahead, back, own = (
        tuple(sum(part[start:end]) for start, end in pairwise(cuts)) for part in (forward, backward, weights)
    )
    splits = all(0 < part < whole for part, whole in zip(own, back, strict=True))
    costs = Costs(ahead, back, ahead, bp_weights=own if splits else ())
    plain = simulate(Pipeline(scheme, devices, microbatches, (Phase.BP,)), costs)
    phases = (Phase.GP,) * GP_BATCHES + (Phase.BP,)
    predicting = simulate(Pipeline(scheme, devices, microbatches, phases), costs)
    one_device = sum(ahead) + sum(back)
    return PipelineFinding(
        scheme,
        devices,
        microbatches,
        tuple(advice.layers[start].name for start in cuts[:-1]),
        max(map(sum, zip(ahead, back, strict=True))) * devices / one_device,
        1 - plain.busy,
        one_device * microbatches / plain.steps,
        len(phases) * plain.steps / predicting.steps,
    )


def _scaled(values: list[float], total: float) -> list[float]:
    """The same proportions, with another sum."""
    return [value * total / sum(values) for value in values]
