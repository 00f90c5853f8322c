"""The simulators that can clock the RTL, and which one is taken."""

from collections.abc import Callable, Mapping

from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.verilated import VerilatedBench, has_verilator

_FEW_CYCLES = 2_000


def choose_simulator(
    cycles: int, cores: Mapping[str, CoreGeometry], tell: Callable[[str], None]
) -> type[Bench] | type[VerilatedBench]:
    """Verilator if it is installed and compiling the design pays; otherwise Amaranth's simulator."""
    if cycles <= _FEW_CYCLES:
        return Bench
    if has_verilator():
        return VerilatedBench
    pes = sum(core.rows * core.columns for core in cores.values())
    minutes = cycles * (12 + pes) / (24 * 60 * Bench.cycles_per_second)
    if minutes > 1:
        tell(
            f"verilator is missing, so Amaranth's simulator takes roughly {minutes:,.0f} minutes; on Debian: "
            "apt-get install verilator g++ make; or choose a smaller layer, batch or array"
        )
    return Bench
