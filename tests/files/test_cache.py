"""Where what can be made again is kept, also by a user without a home."""

import logging
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adagp.files import cache, cache_folder

# The same for Python as a user whom the system does not know.
NO_ENTRY = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""
VARIABLES = ("ADAGP_CACHE", "XDG_CACHE_HOME", "YOWASP_CACHE_DIR", "HOME")


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No home, and the temporary folder that is returned."""

    def getpwuid(uid: int) -> None:
        raise KeyError(uid)

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache._temporary_folder.cache_clear()
    return tmp_path


def test_a_folder_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    monkeypatch.setenv("ADAGP_CACHE", "here")
    assert cache_folder() == Path("here")
    monkeypatch.delenv("ADAGP_CACHE")
    assert cache_folder() == Path("/var/caches/adagp")


def test_a_home_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "adagp"


def test_without_a_home_there_is_a_private_folder(no_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        folders = {cache_folder(), cache_folder()}
    assert folders == {no_home / f"adagp-{os.getuid()}"}
    assert stat.S_IMODE(folders.pop().stat().st_mode) == 0o700
    assert len(caplog.messages) == 1
    assert "set ADAGP_CACHE" in caplog.text


def test_a_home_that_cannot_hold_it_is_none(no_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_home / "file").write_text("")
    monkeypatch.setenv("HOME", str(no_home / "file" / "home"))
    assert cache_folder() == no_home / f"adagp-{os.getuid()}"


@pytest.mark.parametrize("kind", ["open to all", "a link", "a file"])
def test_a_folder_that_others_prepared_is_not_used(no_home: Path, kind: str) -> None:
    """Code is loaded from there, so nobody else may be able to put any into it."""
    place = no_home / f"adagp-{os.getuid()}"
    if kind == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "a link":
        (no_home / "elsewhere").mkdir()
        place.symlink_to(no_home / "elsewhere")
    else:
        place.write_text("")
    folder = cache_folder()
    assert folder.parent == no_home
    assert folder != place
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "arguments",
    [
        "train --method topk --data digits --epochs 1 --train-limit 64 --test-limit 32 --out {folder}/run",
        pytest.param("schedule show --schedule 3 --picture {folder}/schedule.png", marks=pytest.mark.slow),
        "data",
    ],
)
def test_commands_run_without_a_home(arguments: str, tmp_path: Path) -> None:
    code = f"{NO_ENTRY}\nimport sys\nfrom adagp.__main__ import main\nsys.argv[0] = 'adagp'\nmain()"
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"PYTHONPATH": str(Path(cache.__file__).parents[2]), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.format(folder=tmp_path).split()],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
