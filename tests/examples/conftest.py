import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(tmp_path: Path) -> Callable[..., str]:
    """Run an example as a process of its own, as a user does, and return what it printed."""

    def run(script: str, *launcher: str) -> str:
        done = subprocess.run(
            [sys.executable, *launcher, str(EXAMPLES / script)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
        return done.stdout

    return run
