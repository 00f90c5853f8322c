"""The loss of a head's output, which has the form of the model's own output."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Loss = Callable[[Tensor, Any], Tensor]
"""`loss(output, target)`: one number."""


def cross_entropy(output: Tensor, target: Any) -> Tensor:
    """The mean cross-entropy of classes, of next tokens, or of the pixels of a map.

    Args:
        output: Logits: `(samples, classes)`, `(samples, positions, classes)` or `(samples, classes, height, width)`.
        target: The class at each place; -100 is left out.

    Raises:
        ValueError: When there is no target, or it does not fit.
    """
    if not isinstance(target, Tensor):
        raise ValueError(
            f"target = {target!r}: local losses need the labels of the batch: gp.step(closure, target=y), or "
            "gp.batch(target=y)"
        )
    if target.shape == output.shape[:-1]:
        return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
    if target.shape == (output.shape[0], *output.shape[2:]):
        return nn.functional.cross_entropy(output, target)
    raise ValueError(
        f"the target has shape {tuple(target.shape)} and the head's output {tuple(output.shape)}, which are no classes "
        "and their logits: give Local(loss=...) a function of output and target that returns one number"
    )
