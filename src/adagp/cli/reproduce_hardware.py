"""`adagp reproduce table4`, `table5`: the ADA-GP paper's tables about hardware."""

from collections.abc import Callable

from adagp.accelerator.rtl.tools import yosys_version
from adagp.cli import machine_options, options
from adagp.cli.common import command, print_json, print_table
from adagp.cli.display import Display
from adagp.cli.hardware import hardware_errors, parse_pes
from adagp.reproduce.hardware import TARGETS, plain, resources_table, synthesised

_WHAT = {4: "resources on a 7-series FPGA", 5: "area in um2 of standard cells"}


def hardware_table_command(table: int) -> Callable[..., None]:
    """The command that sets our four designs beside one of tables 4 and 5."""

    @command
    def show(
        array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
        second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        with hardware_errors(), Display(as_json) as display:
            sizes = parse_pes("array", array), parse_pes("second_array", second_array)
            ours = synthesised(table, *sizes, display.on_message)
            yosys = yosys_version()
        if as_json:
            print_json(
                {"target": TARGETS[table], "array": array, "second_array": second_array, **plain(table, ours, yosys)}
            )
            return
        title = f"{_WHAT[table]}, {array} PEs, {second_array} in MAX's second array"
        print_table(resources_table(table, ours, title, yosys))

    show.__doc__ = f"""Table {table} of the ADA-GP paper: {_WHAT[table]}, the baseline and the three designs.

    Our RTL through yosys, whose version the table names. The paper's power is not reproduced: no tool here can tell it.

    Try:

    - `adagp reproduce table{table}`: four designs of 180 PEs, one to three minutes.
    """
    return show
