"""Runs programs on the RTL as Verilator compiles it, a thousand times quicker than Amaranth's simulator."""

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from adagp.accelerator.rtl.descriptor import Descriptor
from adagp.accelerator.rtl.dram import Timing, Words
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.testbench import Trace
from adagp.accelerator.rtl.tools import ToolError
from adagp.accelerator.rtl.top import Accelerator
from adagp.accelerator.rtl.verilog import verilog
from adagp.accelerator.rtl.watchdog import Standstill, deadlock, patience_cycles
from adagp.files import cache_folder

_LOG = logging.getLogger(__name__)
_FLAGS = ("--cc", "--exe", "--build", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert", "-Wno-fatal")
_OPTIMISATION = "-O2 -std=c++17 -w"


def has_verilator() -> bool:
    """Whether Verilator and a C++ compiler are installed."""
    return (
        shutil.which("verilator") is not None and shutil.which("g++") is not None and shutil.which("make") is not None
    )


class VerilatedBench:
    """A design compiled by Verilator, with DRAM around it; the same interface as `testbench.Bench`."""

    name = "Verilator"

    def __init__(self, cores: Mapping[str, CoreGeometry], timing: Timing | None = None) -> None:
        """Compile the design, or take it from the cache.

        Raises:
            ToolError: If yosys, Verilator or the compiler is missing or fails.
        """
        self.cores, self.timing = dict(cores), timing or Timing()
        self._binary = _compiled(tuple(self.cores.items()))

    def run(
        self,
        programs: Mapping[str, Sequence[Descriptor]],
        dram: Words,
        tell: Callable[[int], None] | None = None,
    ) -> dict[str, Trace]:
        """Run a program on each core until its last descriptor, a barrier, is taken; changes `dram`.

        Raises:
            DeadlockError: If the design stands still.
            ToolError: If the simulation fails.
        """
        with tempfile.TemporaryDirectory(prefix="adagp-") as name:
            folder = Path(name)
            for unit in self.cores:
                encoded = b"".join(each.encode().to_bytes(16, "little") for each in programs.get(unit, ()))
                (folder / f"program.{unit}").write_bytes(encoded)
            dram.astype("<i2").tofile(folder / "dram")
            patience = patience_cycles(programs, self.cores, self.timing)
            numbers = map(str, (self.timing.bandwidth_words, self.timing.latency_cycles, patience))
            found: dict[str, Trace] = {}
            standing: dict[str, Standstill] = {}
            moved = 0
            with subprocess.Popen(
                [str(self._binary), *numbers], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                for line in process.stdout:
                    kind, *values = line.split()
                    if kind == "core":
                        found[values[0]] = Trace(*map(int, values[1:]))
                    elif kind == "stands":
                        unit, cycle, taken, *channels = values
                        moved, standing[unit] = int(cycle), Standstill(int(taken), tuple(channels))
                    elif tell is not None:
                        tell(int(values[0]))
                complaint = process.stderr.read()
            if process.returncode:
                raise ToolError(f"the compiled simulation failed: {complaint.strip() or process.returncode}")
            if standing:
                raise deadlock(self.cores, programs, standing, moved)
            dram[:] = np.fromfile(folder / "dram", dtype="<i2")
        return found


@cache
def _compiled(cores: tuple[tuple[str, CoreGeometry], ...]) -> Path:
    """The executable of a design, from the cache if it was compiled before."""
    if not has_verilator():
        raise ToolError("verilator is missing: on Debian: apt-get install verilator g++ make")
    design = Accelerator(dict(cores))
    bench = resources.files("adagp.accelerator.rtl").joinpath("verilated.cpp").read_text()
    version = subprocess.run(["verilator", "--version"], capture_output=True, text=True, check=True).stdout
    modules = "\n".join(Library().modules(design).values())
    digest = hashlib.sha256("\n".join([modules, bench, version, *_FLAGS, _OPTIMISATION]).encode()).hexdigest()[:16]
    folder = cache_folder() / "verilator"
    binary = folder / f"accelerator-{digest}"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    calls = " ".join(
        f"WHAT(cores[{place}], {unit}, {geometry.beat_words})" for place, (unit, geometry) in enumerate(cores)
    )
    names = ", ".join(f'"{unit}"' for unit, _ in cores)
    begin = f"#define CORES {len(cores)}\n#define NAMES {names}\n#define EACH_CORE(WHAT) {calls}\n"
    _LOG.warning("verilator compiles the design, once: about a minute")
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        work = Path(name)
        (work / "accelerator.v").write_text(verilog(design))
        (work / "bench.cpp").write_text(begin + bench)
        done = subprocess.run(
            ["verilator", *_FLAGS, "-CFLAGS", _OPTIMISATION, "--top-module", "accelerator", "-Mdir", "made",
             "accelerator.v", "bench.cpp"],
            cwd=work, capture_output=True, text=True, check=False, env=os.environ | {"MAKEFLAGS": ""},
        )  # fmt: skip
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line]
            raise ToolError(f"verilator failed: {lines[0] if lines else f'exit code {done.returncode}'}")
        part = folder / f".{binary.name}.{os.getpid()}"
        shutil.copy(work / "made" / "Vaccelerator", part)
        part.replace(binary)
    return binary
