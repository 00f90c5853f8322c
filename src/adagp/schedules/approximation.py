"""Approximation schedules: some layers get a cheaper source in some batches.

After Wang et al., "Accelerated CNN Training Through Gradient Approximation", sections 2.5, 3 and 3.4.

The error still flows through every layer exactly, so all other gradients stay true.
"""

from collections.abc import Callable, Mapping, Sequence

from adagp.schedules.plan import BACKPROP, Phase, Plan, Repeating, Schedule, require
from adagp.schedules.sources import spec


def approximate(
    layers: Sequence[str], source: str, *, every_layer: int = 1, first_layer: int = 1, every_batch: int = 1
) -> Schedule:
    """Use `source` for every `every_layer`-th layer in every `every_batch`-th batch; all other gradients are exact.

    The approximated batch is the last of each cycle, so that training begins with exact batches; the paper does not
    say which one it is.

    Args:
        layers: The layers to count, in order; see `layer_names`. The model's other layers stay exact.
        source: What the chosen layers get, such as `zero`, `random` or `topk`.
        every_layer: 4 chooses every fourth layer, counted from `first_layer`.
        first_layer: The first layer that is chosen, counted from 1.
        every_batch: 4 approximates in every fourth batch.
    """
    spec(source)  # refuses an unknown one
    require(len(layers) > 0, "layers", "there are none: take them from schedules.layer_names(model)")
    require(every_layer >= 1, "every_layer", "must be at least 1")
    require(every_batch >= 1, "every_batch", "must be at least 1")
    require(
        1 <= first_layer <= len(layers),
        "first_layer",
        f"is {first_layer}, but there are {len(layers)} layers: give a number from 1 to {len(layers)}",
    )
    chosen = dict.fromkeys(layers[first_layer - 1 :: every_layer], source)
    return Repeating([BACKPROP] * (every_batch - 1) + [Plan(Phase.BP, "backprop", chosen, source)])


_BY_NAME: dict[str, tuple[str, Callable[[Sequence[str], str], Schedule]]] = {
    "1": (
        "every fourth layer from the second, in every batch",
        lambda layers, source: approximate(layers, source, every_layer=4, first_layer=2),
    ),
    "2": (
        "every other layer from the second, in every other batch",
        lambda layers, source: approximate(layers, source, every_layer=2, first_layer=2, every_batch=2),
    ),
    "3": (
        "every layer, in every fourth batch",
        lambda layers, source: approximate(layers, source, every_batch=4),
    ),
    "second-layer": (
        "the second layer alone, in every other batch",
        lambda layers, source: approximate(layers[:2], source, first_layer=2, every_batch=2),
    ),
}
APPROXIMATIONS: Mapping[str, str] = {name: about for name, (about, _) in _BY_NAME.items()}
"""The paper's approximation schedules by name, each with a line for people."""


def approximation(name: str, layers: Sequence[str], source: str) -> Schedule:
    """One of the paper's schedules, see `APPROXIMATIONS`: all approximate about a quarter of all layer gradients.

    The paper counts convolutions only: `layer_names(model, include="Conv")` does so too.
    """
    if name not in _BY_NAME:
        raise ValueError(f"name={name!r} is no approximation schedule; known ones: {', '.join(_BY_NAME)}")
    return _BY_NAME[name][1](layers, source)
