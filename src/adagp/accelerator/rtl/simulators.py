"""The simulators that can clock the RTL, and which one is taken."""

from collections.abc import Callable, Mapping

from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.verilated import VerilatedBench, has_verilator

Simulator = type[Bench] | type[VerilatedBench]

_FEW_CYCLES = 2_000


def choose_simulator(
    cycles: int, cores: Mapping[str, CoreGeometry], tell: Callable[[str], None], waveforms: bool = False
) -> Simulator:
    """Verilator if it is installed and compiling pays; otherwise, and for waveforms, Amaranth's simulator."""
    if cycles <= _FEW_CYCLES:
        return Bench
    if has_verilator() and not waveforms:
        return VerilatedBench
    pes = sum(core.rows * core.columns for core in cores.values())
    minutes = cycles * (12 + pes) / (24 * 60 * Bench.cycles_per_second)
    if minutes > 1:
        why = (
            "waveforms need Amaranth's simulator, which"
            if waveforms
            else "verilator is missing, and Amaranth's simulator"
        )
        remedy = "" if waveforms else "on Debian: apt-get install verilator g++ make; or "
        tell(f"{why} takes roughly {minutes:,.0f} minutes; {remedy}clock less, such as a smaller batch")
    return Bench
