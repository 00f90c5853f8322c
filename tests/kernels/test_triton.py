"""The GPU kernel without a GPU: interpreted, it gives the reference's numbers; compiled, it is valid for two makers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adagp.kernels import choose_topk, topk_backends, topk_weight_grad
from tests.kernels.cases import assert_same

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")
@pytest.mark.parametrize("what", ["interpret", "compile"])
def test_the_kernel_without_a_gpu(what: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "1" if what == "interpret" else "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton_checks", what],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert result.stdout == "agreed\n", result.stderr


def test_it_is_not_taken_for_a_cpu() -> None:
    assert choose_topk(torch.ones(1, 1, 4, 4)) != "triton"


@pytest.mark.skipif(bool(topk_backends()["triton"]), reason=topk_backends()["triton"] or "-")
def test_on_a_gpu() -> None:
    x, grad = torch.randn(4, 6, 9, 9), torch.randn(4, 8, 9, 9)
    device = torch.accelerator.current_accelerator()
    for k in (1, 3):
        result = topk_weight_grad(x.to(device), grad.to(device), (8, 6, 3, 3), padding=1, k=k)
        assert_same(result.cpu(), topk_weight_grad(x, grad, (8, 6, 3, 3), padding=1, k=k))
