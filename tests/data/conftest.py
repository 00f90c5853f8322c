from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no data root but those it names."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ADAGP_CACHE", str(folder))
    return folder
