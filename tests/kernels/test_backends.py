"""Every kernel is held to the reference, on many small convolutions and on a few large enough for every fast path."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from adagp.kernels import topk_compiled, topk_gather, topk_reference
from adagp.kernels.geometry import geometry
from adagp.kernels.topk import Kernel
from tests.kernels.cases import LAYOUTS, Case, assert_same, cases, lay_out, needs_compiler

KERNELS = [
    pytest.param(topk_gather.weight_grad, id="gather"),
    pytest.param(topk_compiled.weight_grad, id="compiled", marks=needs_compiler),
]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def agree(kernel: Kernel, case: Case) -> None:
    actual = kernel(case.input, case.grad_output, case.conv, case.k)
    assert actual.dtype == case.input.dtype
    assert_same(actual, topk_reference.weight_grad(case.input, case.grad_output, case.conv, case.k))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_the_reference(kernel: Kernel) -> None:
    @given(cases())
    @settings(max_examples=250, deadline=None)
    def check(case: Case) -> None:
        agree(kernel, case)

    check()


@needs_compiler
@given(cases(max_channels=70))
@settings(max_examples=150, deadline=None)
def test_the_compiled_kernel_is_the_reference_for_blocks_of_channels(case: Case) -> None:
    agree(topk_compiled.weight_grad, case)


# One for each way through the compiled kernel: wide blocks, narrow ones, several bundles of samples, a rest of
# channels, groups, a pixel each, and inputs too large to be packed.
SHAPES = [
    ((6, 160, 4, 4), (160, 160, 3, 3), 1, 1),
    ((6, 64, 8, 8), (40, 64, 3, 3), 1, 1),
    ((30, 64, 12, 12), (64, 64, 3, 3), 1, 1),
    ((4, 36, 8, 8), (12, 18, 3, 3), 2, 2),
    ((3, 32, 33, 31), (6, 32, 1, 3), (2, 1), 1),
    ((9, 130, 1, 1), (70, 130, 1, 1), 0, 1),
    ((5, 48, 9, 9), (48, 1, 3, 3), 1, 48),
]


def large_case(index: int, layouts: tuple[str, str], k: int, dtype: torch.dtype) -> Case:
    size, shape, padding, groups = SHAPES[index]
    conv = geometry(shape, 1, padding, 1, groups)
    x = torch.randn(size, dtype=dtype)
    grad = torch.randn(size[0], shape[0], *conv.output_size(size[2:]), dtype=dtype)
    return Case(conv, lay_out(x, layouts[0]), lay_out(grad, layouts[1]), k)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("index", range(len(SHAPES)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_layout_and_size(kernel: Kernel, index: int, dtype: torch.dtype) -> None:
    for k, *layouts in product((1, 3), LAYOUTS[:3], LAYOUTS[:3]):
        agree(kernel, large_case(index, (layouts[0], layouts[1]), k, dtype))


@needs_compiler
@pytest.mark.parametrize("index", range(len(SHAPES)))
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_the_number_of_threads_changes_no_bit(index: int, layout: str) -> None:
    case = large_case(index, (layout, layout), 2, torch.float32)
    results: list[Tensor] = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(topk_compiled.weight_grad(case.input, case.grad_output, case.conv, case.k))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_the_gradient_is_laid_out_as_torch_would(layout: str) -> None:
    case = large_case(0, (layout, layout), 1, torch.float32)
    dense = topk_reference.weight_grad(case.input, case.grad_output, case.conv, case.k)
    assert topk_compiled.weight_grad(case.input, case.grad_output, case.conv, case.k).stride() == dense.stride()
