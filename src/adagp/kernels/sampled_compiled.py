"""The steps of a sampled weight gradient for CPUs: `sampled.cpp`, compiled on first use, and matrix products.

The rows of some samples at a time are gathered and multiplied, so that they stay in the cache: those of a whole batch
take longer to store than to multiply.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from adagp.kernels import library
from adagp.kernels.geometry import Geometry
from adagp.kernels.products import LEAST_WORK, add_product
from adagp.kernels.sampling import Draw, Scored

_PART_ROWS = 2048
"""Rows of one product: enough to pay for adding to the whole weight."""
_PART_ENTRIES = 1 << 22
"""Entries of these rows at most, where more of them make a product that has a faster way."""
_FIELDS = (
    *("samples", "threads"),
    *("channels", "inputs", "kernel_y", "kernel_x"),
    *("height", "width", "out_height", "out_width"),
    *("stride_y", "stride_x", "pad_y", "pad_x", "dilation_y", "dilation_x"),
    *("x_sample", "x_channel", "x_pixel"),
    *("grad_sample", "grad_channel", "grad_position"),
    "own_means",
)


class _Problem(ctypes.Structure):
    """The struct of the same name in `sampled.cpp`, field by field."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


_Functions = dict[tuple[str, torch.dtype], Callable[..., int]]


@cache
def _functions() -> _Functions | str:
    """The compiled functions by name and type, or the reason why there are none."""
    loaded = library.load("sampled")
    if isinstance(loaded, str):
        return loaded
    pointer, number, problem = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Problem)
    arguments: dict[str, list[Any]] = {
        "score": [problem, *[pointer] * 5],
        "gather": [problem, *[pointer] * 5, *[number] * 3, *[pointer] * 3],
    }
    functions: _Functions = {}
    for dtype, suffix in ((torch.float32, "float"), (torch.float64, "double")):
        for name, kinds in arguments.items():
            function = loaded[f"adagp_{name}_{suffix}"]
            function.argtypes, function.restype = kinds, ctypes.c_int
            functions[name, dtype] = function
    return functions


def why_not() -> str:
    """The reason why these cannot be used, or an empty string. The first call may compile for a few seconds."""
    functions = _functions()
    return functions if isinstance(functions, str) else ""


def score(x: Tensor, grad_output: Tensor, conv: Geometry, own_means: bool) -> Scored:
    """The score of every position; each sample has a mean of its own, or all have one in common."""
    x, grad_output, problem = _problem(x, grad_output, conv, own_means)
    scores = x.new_empty(grad_output.numel() // grad_output.shape[1])
    means = x.new_empty(x.shape[:2]) if own_means else x.mean((0, 2, 3))[None]
    totals = x.new_empty(grad_output.shape[:2])
    _call("score", x.dtype, problem, x, grad_output, scores, means, totals)
    return Scored(scores, means, totals)


def sum_rows(x: Tensor, grad_output: Tensor, conv: Geometry, drawn: Draw) -> tuple[Tensor, Tensor]:
    """The weighted sum of the drawn rows in the shape of the weight, and of `grad_output` alone by samples."""
    x, grad_output, problem = _problem(x, grad_output, conv, own_means=True)
    out, fan, taps_y, taps_x = conv.weight_shape
    positions, weights = grad_output[0, 0].numel(), drawn.weights.to(x.dtype)
    ends = torch.searchsorted(drawn.rows, torch.arange(1, len(x) + 1) * positions)
    as_planes = not (x.stride(1) == 1 and grad_output.stride(1) == 1)
    total = x.new_zeros(conv.groups, out // conv.groups, conv.taps * fan)
    totals = x.new_zeros(len(x), out)
    parts = list(_parts(ends.tolist(), len(x), _rows_at_once(conv)))
    most = max((count for _, _, count in parts), default=0)
    patches, grads = x.new_empty(most * conv.taps * x.shape[1]), x.new_empty(most * out)
    for first, last, count in parts:
        arrays = (x, grad_output, drawn.rows, weights, ends)
        _call("gather", x.dtype, problem, *arrays, first, last, int(as_planes), patches, grads, totals)
        _add_product(total, grads[: count * out], patches[: count * conv.taps * x.shape[1]], count, conv, as_planes)
    if as_planes:
        return total.view(out, fan, taps_y, taps_x), totals
    return total.view(out, taps_y, taps_x, fan).permute(0, 3, 1, 2), totals


def _add_product(total: Tensor, grads: Tensor, patches: Tensor, count: int, conv: Geometry, as_planes: bool) -> None:
    """Add `grads` times `patches` to the weight, group by group."""
    groups, out, size = total.shape
    if as_planes:
        left, right = grads.view(groups, out, count), patches.view(groups, size, count).transpose(1, 2)
    else:
        left = grads.view(count, groups, out).permute(1, 2, 0)
        right = patches.view(count, conv.taps, groups, size // conv.taps).permute(2, 0, 1, 3).reshape(-1, count, size)
    if groups == 1:
        add_product(total[0], left[0], right[0])
    else:
        total.baddbmm_(left, right)


def _rows_at_once(conv: Geometry) -> int:
    out, entries = conv.weight_shape[0], conv.weight_shape[1] * conv.taps
    rows = -(-LEAST_WORK // (out * entries))
    return rows if conv.groups == 1 and _PART_ROWS < rows <= _PART_ENTRIES // entries else _PART_ROWS


def _parts(ends: list[int], samples: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """The first sample, the end and the rows of each part; parts without rows are left out."""
    first = begin = 0
    for sample in range(1, samples + 1):
        count = ends[sample - 1] - begin
        if count >= rows or (sample == samples and count):
            yield first, sample, count
            first, begin = sample, ends[sample - 1]


def _problem(x: Tensor, grad_output: Tensor, conv: Geometry, own_means: bool) -> tuple[Tensor, Tensor, _Problem]:
    x, x_pixel = library.with_one_step(x)
    grad_output, grad_position = library.with_one_step(grad_output)
    return (
        x,
        grad_output,
        _Problem(
            *(x.shape[0], torch.get_num_threads()),
            *(conv.weight_shape[0], x.shape[1], *conv.weight_shape[2:]),
            *(*x.shape[2:], *grad_output.shape[2:]),
            *(*conv.stride, *conv.padding, *conv.dilation),
            *(x.stride(0), x.stride(1), x_pixel),
            *(grad_output.stride(0), grad_output.stride(1), grad_position),
            int(own_means),
        ),
    )


def _call(name: str, dtype: torch.dtype, problem: _Problem, *arguments: Tensor | int) -> None:
    functions = _functions()
    if isinstance(functions, str):
        raise RuntimeError(f"the compiled kernel cannot be used: {functions}")
    given = (one.data_ptr() if isinstance(one, Tensor) else one for one in arguments)
    if functions[name, dtype](problem, *given):
        raise MemoryError(f"no memory for the working space of a sampled gradient ({name})")
