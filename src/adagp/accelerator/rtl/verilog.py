"""A design as Verilog, one module for each kind of component."""

from importlib import resources

from amaranth.lib.wiring import Component

from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.tools import run_yosys


def verilog(design: Component) -> str:
    """The Verilog of a design; its top module has the design's name.

    Raises:
        ToolError: If yosys is missing or fails.
    """
    rtlil = "\n".join(Library().modules(design).values())
    script = f"hierarchy -top {design.module_name}; proc; opt_clean; write_verilog -noattr design.v"
    return run_yosys(rtlil, script, "design.v")


def waivers() -> str:
    """What of Verilator's `-Wall` does not apply to the Verilog, and why; a file for Verilator."""
    return resources.files("adagp.accelerator.rtl").joinpath("waivers.vlt").read_text()
