"""Other libraries warn of what is theirs."""

import pytest


@pytest.fixture(autouse=True)
def _quiet(recwarn: pytest.WarningsRecorder) -> None:
    """Record their warnings; those of adagp are log records."""
