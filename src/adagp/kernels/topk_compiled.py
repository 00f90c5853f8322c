"""The kernel for CPUs: `topk.cpp`, compiled on first use."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from adagp.kernels import library
from adagp.kernels.geometry import Geometry

_FIELDS = (
    *("samples", "groups", "k", "threads"),
    *("channels", "fan", "kernel_y", "kernel_x"),
    *("height", "width", "out_height", "out_width"),
    *("stride_y", "stride_x", "pad_y", "pad_x", "dilation_y", "dilation_x"),
    *("x_sample", "x_channel", "x_pixel"),
    *("grad_sample", "grad_channel", "grad_position"),
    *("out_fan", "out_tap"),
)


class _Problem(ctypes.Structure):
    """The struct of the same name in `topk.cpp`, field by field."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


_Function = Callable[..., int]


@cache
def _functions() -> dict[torch.dtype, _Function] | str:
    """The compiled function for each type, or the reason why there is none; determined once per process."""
    loaded = library.load("topk")
    if isinstance(loaded, str):
        return loaded
    functions: dict[torch.dtype, _Function] = {}
    for dtype, name in ((torch.float32, "adagp_topk_float"), (torch.float64, "adagp_topk_double")):
        function = loaded[name]
        function.argtypes = [ctypes.POINTER(_Problem), *[ctypes.c_void_p] * 3]
        function.restype = ctypes.c_int
        functions[dtype] = function
    return functions


def why_not() -> str:
    """The reason why this kernel cannot be used, or an empty string. The first call may compile for a few seconds."""
    functions = _functions()
    return functions if isinstance(functions, str) else ""


def weight_grad(x: Tensor, grad_output: Tensor, conv: Geometry, k: int) -> Tensor:
    """The weight gradient, summed in the same order whatever the number of threads.

    Its memory layout is that of torch's own convolution: channels-last if the input is.
    """
    functions = _functions()
    if isinstance(functions, str):
        raise RuntimeError(f"the compiled kernel cannot be used: {functions}")
    x, x_pixel = library.with_one_step(x)
    grad_output, grad_position = library.with_one_step(grad_output)
    channels_last = x.stride(1) == 1 and x.shape[1] > 1
    result = torch.empty(
        conv.weight_shape,
        dtype=x.dtype,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )
    (height, width), (out_height, out_width) = x.shape[2:], grad_output.shape[2:]
    problem = _Problem(
        *(x.shape[0], conv.groups, min(k, out_height * out_width), torch.get_num_threads()),
        *(*conv.weight_shape, height, width, out_height, out_width),
        *(*conv.stride, *conv.padding, *conv.dilation),
        *(x.stride(0), x.stride(1), x_pixel),
        *(grad_output.stride(0), grad_output.stride(1), grad_position),
        *((1, conv.weight_shape[1]) if channels_last else (conv.taps, 1)),
    )
    if functions[x.dtype](problem, x.data_ptr(), grad_output.data_ptr(), result.data_ptr()):
        raise MemoryError(f"no memory for the working space of topk with k = {k} on {tuple(grad_output.shape)}")
    return result
