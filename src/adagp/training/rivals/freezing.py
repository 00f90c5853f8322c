"""Layer freezing: early layers stop learning before late ones, and their backward is saved.

Brock et al., FreezeOut: Accelerate Training by Progressively Freezing Layers, arXiv 1706.04983; here in two steps and
without a learning rate for each layer.
"""

from torch import nn

from adagp.training.rivals.rival import Rival

STEPS = ((0.5, 1 / 3), (0.75, 2 / 3))
"""From a point of the run on, the share of the modules with parameters that is frozen."""


class Freezing(Rival):
    """Freezes the first third of the modules after half of the run, and two thirds after three quarters.

    Statistics of normalisation layers still follow the data.
    """

    stages = ((0.0, 0.5), (0.5, 0.25), (0.75, 0.25))

    def before_batch(self, model: nn.Module, progress: float) -> None:
        """Freeze what is due, in the order in which the model registers its modules."""
        share = max((share for start, share in STEPS if progress >= start), default=0.0)
        holders = [module for module in model.modules() if list(module.parameters(recurse=False))]
        for module in holders[: int(share * len(holders))]:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
