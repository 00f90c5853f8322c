"""`adagp reproduce table4` and `table5`: the ADA-GP paper's tables about hardware."""

from collections.abc import Callable

from adagp.accelerator.rtl.tools import YOSYS
from adagp.cli import machine_options, options
from adagp.cli.common import command, print_json, print_table, refusals
from adagp.cli.display import Display
from adagp.cli.hardware_costs import parse_pes
from adagp.reproduce.hardware import TARGETS, TITLES, plain, resources_table, synthesised


def _table_command(table: int) -> Callable[..., None]:
    @command
    def show(
        array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
        second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        with refusals(), Display(as_json) as display:
            sizes = parse_pes("array", array), parse_pes("second_array", second_array)
            ours = synthesised(table, *sizes, display.on_message)
            yosys = YOSYS.version()
        if as_json:
            print_json(
                {"target": TARGETS[table], "array": array, "second_array": second_array, **plain(table, ours, yosys)}
            )
            return
        title = f"{TITLES[table]}, {array} PEs, {second_array} in MAX's second array"
        print_table(resources_table(table, ours, title, yosys))

    show.__doc__ = f"""Table {table} of the ADA-GP paper: {TITLES[table]}, the baseline and the three designs.

    Our RTL through yosys, whose version the table names. `adagp hardware power` estimates power.

    Try:

    - `adagp reproduce table{table}`: four designs of 180 PEs, one to three minutes.
    """
    return show


table4_command, table5_command = (_table_command(table) for table in (4, 5))
