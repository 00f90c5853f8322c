"""A design as Verilog, one module for each kind of component."""

from amaranth.lib.wiring import Component

from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.tools import run_yosys


def verilog(design: Component) -> str:
    """The Verilog of a design, its top module first to be found by its name.

    Raises:
        ToolError: without yosys, or where it fails.
    """
    return run_yosys(Library().rtlil(design), "proc; opt_clean; write_verilog -noattr {folder}/design.v", "design.v")
