"""The programs that the RTL needs beside Python."""

import shutil
import subprocess
import tempfile
from pathlib import Path


class ToolError(RuntimeError):
    """A program that is needed is missing, or failed; the message names it and the remedy."""


def find_yosys() -> str:
    """The path of yosys.

    Raises:
        ToolError: where there is none.
    """
    yosys = shutil.which("yosys")
    if yosys is None:
        raise ToolError("yosys is missing: install it, on Debian: apt-get install yosys")
    return yosys


def run_yosys(rtlil: str, script: str, result: str) -> str:
    """Run a script on a design; returns a file it wrote into `{folder}`.

    Raises:
        ToolError: without yosys, or where it fails.
    """
    yosys = find_yosys()
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        folder = Path(name)
        (folder / "design.il").write_text(rtlil)
        begin = f"read_rtlil {folder}/design.il\ndelete t:$meminit*"  # no memory is read before it is written
        (folder / "script.ys").write_text(f"{begin}\n{script.format(folder=folder)}\n")
        done = subprocess.run(
            [yosys, "-q", "-s", str(folder / "script.ys")], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise ToolError(f"yosys failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
        return (folder / result).read_text()
