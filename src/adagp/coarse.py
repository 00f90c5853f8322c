"""Coarse batches: the same samples at a fraction of their size, for true gradients at a fraction of the work.

A plan's `scale` says how large the samples of its batch are. What that means is up to the data: `images` averages
pixels, `boxes` and `masks` follow them, `tokens` takes a shorter context. Any function of your own will do as well.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.schedules.plan import require, require_scale


def size(pixels: int, scale: float, multiple: int = 1) -> int:
    """The pixels of one side at a scale: a multiple of `multiple`, and never more than at full size, which is kept."""
    require_scale(scale)
    require(multiple > 0, f"multiple = {multiple!r}", "must be at least 1")
    if scale == 1 or pixels <= multiple:
        return pixels
    return min(max(round(pixels * scale / multiple), 1), pixels // multiple) * multiple


def images(batch: Tensor, scale: float, multiple: int = 1) -> Tensor:
    """Images at a fraction of their size, each pixel the mean of the area it stands for.

    Args:
        batch: `(..., height, width)`, as float or as bytes; at least three dimensions.
        scale: The fraction of height and width to keep. 1 returns the batch itself.
        multiple: Height and width become multiples of this, such as the total stride of a detector.
    """
    if batch.dim() < 3:
        raise ValueError(f"the batch has shape {tuple(batch.shape)}: images have channels, height and width")
    height, width = (size(side, scale, multiple) for side in batch.shape[-2:])
    if (height, width) == tuple(batch.shape[-2:]):
        return batch
    pixels = batch if batch.is_floating_point() else batch.float()
    smaller = _mean_of_areas(pixels, height, width)
    return smaller if batch.is_floating_point() else smaller.round().to(batch.dtype)


def _mean_of_areas(pixels: Tensor, height: int, width: int) -> Tensor:
    rows, columns = pixels.shape[-2:]
    if (rows, columns) == (2 * height, 2 * width) and pixels.dtype is torch.float32:
        # Measured on a CPU: four to eight times as fast as avg_pool2d, which is for types that sums would round.
        pairs = pixels[..., ::2, :] + pixels[..., 1::2, :]
        return (pairs[..., ::2] + pairs[..., 1::2]) / 4
    if rows % height == 0 and columns % width == 0:
        return nn.functional.avg_pool2d(pixels, (rows // height, columns // width))
    return nn.functional.adaptive_avg_pool2d(pixels, (height, width))


def boxes(corners: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """Boxes `(..., 4)` as left, top, right, bottom in pixels, moved from one size of their image to another.

    Args:
        corners: The boxes; whole numbers become floats.
        before: Height and width of the image they were made for.
        after: Height and width of the image they are for now.
    """
    factors = [after[1] / before[1], after[0] / before[0]] * 2
    return corners * torch.tensor(factors, dtype=torch.result_type(corners, 1.0), device=corners.device)


def masks(labels: Tensor, scale: float, multiple: int = 1) -> Tensor:
    """Masks of class labels `(..., height, width)` at a fraction of their size: labels are picked, not averaged."""
    height, width = (size(side, scale, multiple) for side in labels.shape[-2:])
    rows = torch.arange(height, device=labels.device) * labels.shape[-2] // height
    columns = torch.arange(width, device=labels.device) * labels.shape[-1] // width
    return labels[..., rows[:, None], columns]


def tokens(batch: Tensor, scale: float, multiple: int = 1) -> Tensor:
    """Sequences `(batch, length, ...)` cut to a fraction of their length: a shorter context for next-token training."""
    return batch[:, : size(batch.shape[1], scale, multiple)]


def check(
    model: nn.Module,
    example: Tensor,
    scales: Iterable[float],
    resize: Callable[[Tensor, float], Tensor] = images,
) -> None:
    """Refuse scales at which a model cannot run, before training.

    A copy of the model runs on one sample, at full size and at each scale; the model itself stays as it is.

    Args:
        model: The model.
        example: A batch of one or more samples, as the model takes it.
        scales: The scales of a schedule.
        resize: Makes a batch smaller.

    Raises:
        ValueError: When the model cannot take a size; the message names the module, the cause and a remedy.
    """
    model = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", model)
    twin = copy.deepcopy(model).eval()
    device = next((parameter.device for parameter in twin.parameters()), example.device)
    for scale in sorted({1.0, *scales}, reverse=True):
        smaller = resize(example[:1], scale)
        inside: list[str] = []
        hooks = _watch(twin, inside)
        try:
            with torch.no_grad(), torch.random.fork_rng():
                twin(smaller.to(device))
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            name = inside[-1] if inside else ""
            raise ValueError(_refusal(twin, name, scale, smaller, error)) from error
        finally:
            for hook in hooks:
                hook.remove()


def _watch(model: nn.Module, inside: list[str]) -> list[Any]:
    """Hooks that keep the names of the modules whose forward is under way."""
    hooks: list[Any] = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda _, inputs, name=name: inside.append(name)))
        hooks.append(module.register_forward_hook(lambda _, inputs, output: inside.pop() and None))
    return hooks


def _refusal(model: nn.Module, name: str, scale: float, smaller: Tensor, error: Exception) -> str:
    module = model.get_submodule(name)
    where = f"module {name!r} ({type(module).__name__})" if name else f"{type(module).__name__} itself"
    shape = "x".join(map(str, smaller.shape[1:]))
    cause = str(error).strip().partition("\n")[0] or type(error).__name__
    if scale == 1:
        return f"the example does not fit the model at full size, {shape}: {where} fails ({cause})"
    remedy = _remedy(module, cause)
    return f"scale {scale:g}: the model cannot take samples of {shape}; {where} fails ({cause}); {remedy}"


def _remedy(module: nn.Module, cause: str) -> str:
    """What helps, by the module that failed and the words of torch."""
    if isinstance(module, nn.Linear) or "is invalid for input of size" in cause:
        return "it expects one size: put nn.AdaptiveAvgPool2d(1) before the classifier"
    if "Sizes of tensors must match" in cause:
        return "maps of two paths differ: use sizes that are multiples of the model's total stride (multiple=...)"
    if type(module).__module__.startswith("torch.nn"):
        return "its maps become too small: use a larger scale"
    return (
        "positions may be tied to one size, such as a position embedding: interpolate it; or use sizes that are "
        "multiples of the model's total stride (multiple=...)"
    )
