"""Loading the C++ files of this folder, compiled on first use."""

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

from torch import Tensor

from adagp.kernels.build import CannotBuildError, shared_library

_LOG = logging.getLogger(__name__)


@cache
def load(name: str) -> ctypes.CDLL | str:
    """The library of `NAME.cpp`, or the reason why there is none; determined once per process."""
    if os.environ.get("ADAGP_NO_COMPILE", "0") not in ("", "0"):
        return "switched off by ADAGP_NO_COMPILE"
    try:
        return ctypes.CDLL(str(shared_library(Path(__file__).with_name(f"{name}.cpp"))))
    except (CannotBuildError, OSError) as error:
        _LOG.warning("%s falls back to torch, which is several times slower: %s", name, error)
        return str(error)


def with_one_step(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor, copied only if necessary, and its stride from one pixel to the next."""
    height, width = tensor.shape[2:]
    if width == 1:
        return tensor, tensor.stride(2)
    if height > 1 and tensor.stride(2) != width * tensor.stride(3):
        tensor = tensor.contiguous()
    return tensor, tensor.stride(3)
