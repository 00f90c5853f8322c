import re
from collections.abc import Callable

import pytest
from torch import distributed

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch without distributed")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.parametrize(
    "launcher", [pytest.param((), id="spawned", marks=pytest.mark.slow), pytest.param(TORCHRUN, id="torchrun")]
)
def test_ranks_end_with_the_same_weights(launcher: tuple[str, ...], run_example: Callable[..., str]) -> None:
    printed = run_example("ddp.py", *launcher)
    checksums = re.findall(r"^rank \d: weights ([0-9a-f]{16})$", printed, re.MULTILINE)
    assert len(checksums) == 2
    assert len(set(checksums)) == 1
    assert "'predicted': " in printed
    assert "all ranks hold the same weights: True" in printed
