"""Activation checkpointing as an option: less memory for a second forward of each block."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from adagp.advice.exact import ExactOption
from adagp.advice.subject import Subject

CHECKPOINTING = "activation checkpointing"
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def checkpoint_options(subject: Subject) -> list[ExactOption]:
    """Checkpointing of the blocks that the model repeats; none where it repeats nothing."""
    blocks = repeated_blocks(subject.model)
    if not blocks:
        return []
    kinds = sorted({type(block).__name__ for block in blocks})
    code: tuple[str, ...] = (
        "import functools, torch.utils.checkpoint",
        f"for block in [part for part in model.modules() if type(part).__name__ in {kinds!r}]:",
        "    block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)",
    )
    if any(isinstance(part, _BatchNorm) for block in blocks for part in block.modules()):
        code += ("# their batch norms then update running statistics twice a batch: halve `momentum` of each",)
    return [ExactOption(CHECKPOINTING, code, partial(_checkpointed, blocks))]


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules with several layers whose class occurs more than once; blocks inside of them stay."""
    counts = Counter(type(module) for module in model.modules())
    found = _outermost(model, lambda module: counts[type(module)] > 1 and _layers(module) > 1)
    return list(dict.fromkeys(found))  # one that is used in two places counts once


def _outermost(module: nn.Module, is_block: Callable[[nn.Module], bool]) -> Iterator[nn.Module]:
    for child in module.children():
        if is_block(child) and not isinstance(child, _CONTAINERS):
            yield child
        else:
            yield from _outermost(child, is_block)


def _layers(module: nn.Module) -> int:
    """The number of modules inside that own parameters."""
    return sum(any(True for _ in part.parameters(recurse=False)) for part in module.modules())


@contextmanager
def _checkpointed(blocks: Sequence[nn.Module]) -> Iterator[None]:
    before = [block.__dict__.get("forward") for block in blocks]
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            if own is None:
                del block.forward
            else:
                block.forward = own
