"""Run by `test_triton.py` in a process of its own: `interpret` against the reference, or `compile` for two GPUs."""

import sys
from typing import Any

import torch
from hypothesis import given, settings

from adagp.kernels import topk_reference, topk_triton
from adagp.kernels.geometry import geometry
from tests.kernels.cases import Case, assert_same, cases, lay_out


def agree(case: Case) -> None:
    actual = topk_triton.weight_grad(case.input, case.grad_output, case.conv, case.k)
    assert_same(actual, topk_reference.weight_grad(case.input, case.grad_output, case.conv, case.k))


def interpret() -> None:
    """Random small cases, then several blocks of positions, of input channels and of entries."""
    settings(max_examples=12, deadline=None, database=None)(given(cases())(agree))()
    large = (
        ((1, 2, 36, 34), (1, 2, 3, 3), 1, 1),
        ((3, 264, 2, 2), (2, 132, 1, 1), 0, 2),
        ((20, 3, 3, 3), (2, 3, 2, 2), 1, 1),
    )
    for (size, shape, padding, groups), k in zip(large, (1, 1, 2), strict=True):
        conv = geometry(shape, 1, padding, 1, groups)
        grad = torch.randn(size[0], shape[0], *conv.output_size(size[2:]))
        agree(Case(conv, torch.randn(size), lay_out(grad, "channels-last"), k))
    x, grad = torch.ones(2, 2, 4, 4), torch.ones(2, 2, 4, 4)
    grad[1, 1, 2, 2] = torch.nan
    result = topk_triton.weight_grad(x, grad, geometry((2, 2, 1, 1), 1, 0, 1, 1), 1)
    assert result[1].isnan().all()
    assert result[0].isfinite().all()


def compile_for_gpus() -> None:
    """The interpreter forgives what a compiler does not."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants: dict[Any, dict[str, int]] = {
        topk_triton._largest: {"block": 1024},
        topk_triton._add_patches: {"at_once": 16, "block": 64},
    }
    for function, values in constants.items():
        for real, target in (
            ("fp32", GPUTarget("cuda", 80, 32)),
            ("fp64", GPUTarget("cuda", 80, 32)),
            ("fp32", GPUTarget("hip", "gfx942", 64)),
        ):
            pointers = {"positions": "*i32"} | dict.fromkeys(("grad", "values", "x", "out"), f"*{real}")
            signature = {
                name: "constexpr" if name in values else pointers.get(name, "i32") for name in function.arg_names
            }
            fixed = {(function.arg_names.index(name),): value for name, value in values.items()}
            source = ASTSource(fn=function, signature=signature, constexprs=fixed)
            assert triton.compile(source, target=target).asm, target


if __name__ == "__main__":
    {"interpret": interpret, "compile": compile_for_gpus}[sys.argv[1]]()
    print("agreed")
