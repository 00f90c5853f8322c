"""Two processes of each library: DistributedDataParallel is theirs, and ranks stay identical."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integrations.libraries import needs

needs("transformers", "accelerate", "lightning", "peft")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "transformers", "lightning", "fabric"])
def test_ranks_stay_identical_through_all_phases(library: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.two_processes", library, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["wrapper"] == second["wrapper"] == "DistributedDataParallel"
    assert first["counts"] == second["counts"]
    assert first["counts"]["predicted"] > 0
    assert first["counts"]["backprop"] > 0
    assert all(torch.equal(one, two) for one, two in zip(first["parameters"], second["parameters"], strict=True))
