"""How much work a network's forward is, and which of its modules do it, found without computing anything."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(model: nn.Module, inputs: Sequence[Tensor], among: Collection[str]) -> tuple[int, int]:
    """Multiply-adds of one forward, and how many of them are done by the modules named.

    Counted are products of matrices and convolutions, wherever they are called: attention's, which belong to no layer,
    too. Norms, activations and pooling are not. Model and inputs may be on the meta device, where this costs nothing.

    Args:
        model: Any module; it is run once as it is, so give it in `eval` mode for the work of one prediction.
        inputs: The arguments of its forward.
        among: Names of modules, of which none is inside another.
    """
    counter = FlopCounterMode(display=False)
    done = 0

    def before(*_: object) -> None:
        nonlocal done
        done -= counter.get_total_flops()

    def after(*_: object) -> None:
        nonlocal done
        done += counter.get_total_flops()

    hooks = []
    for name in among:
        module = model.get_submodule(name)
        hooks += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        with torch.no_grad(), counter:
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return counter.get_total_flops() // 2, done // 2
