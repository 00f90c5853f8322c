"""`adagp hardware timing`, `place`, `power`, `prove` and `coverage`: what the RTL costs, and how it is verified."""

from dataclasses import asdict
from typing import Annotated

import typer

from adagp.accelerator import Array, Design
from adagp.accelerator.rtl.tools import NEXTPNR, YOSYS
from adagp.accelerator.text import parse_array
from adagp.cli import machine_options, options
from adagp.cli.common import command, print_json, print_table, refusals
from adagp.cli.display import Display
from adagp.errors import AdagpError
from adagp.report.hardware_costs import coverage_table, placed_table, power_table, proofs_table, timing_table
from adagp.reproduce import power as paper
from adagp.schedules import Phase

_NAMES = ", ".join(design.value for design in Design)
DesignName = Annotated[str, typer.Option("--design", help=f"One of {_NAMES}.")]


@command
def timing_command(
    design: DesignName = "efficient",
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Static timing of a design in open 0.18 um standard cells: the longest path of every module, and the clock.

    Try:

    - `adagp hardware timing --design efficient`: about a minute.
    - `adagp hardware timing --design max --array 4x4 --second-array 2x2 --json`
    """
    del debug
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.rtl.netlist import instance_counts, mapped
        from adagp.accelerator.rtl.timing import timing
        from adagp.accelerator.rtl.top import Accelerator, geometries

        cores = geometries(parse_design(design), parse_pes("array", array), parse_pes("second_array", second_array))
        yosys = YOSYS.version()
        display.on_message(f"mapping {design} to standard cells")
        modules = mapped(Accelerator(cores))
        display.on_message("analysing every module")
        found = timing(modules)
    last = list(found.values())[-1].inside
    assert last is not None
    if as_json:
        longest = {name: each.inside.ns if each.inside else None for name, each in found.items()}
        print_json({"design": design, "array": array, "yosys": yosys, "clock": asdict(last), "inside_ns": longest})
        return
    title = f"{design}, {array} PEs, 0.18 um cells, yosys {yosys}: longest paths in ns"
    print_table(timing_table(title, found, instance_counts(modules)))


@command
def place_command(
    design: Annotated[str, typer.Option("--design", help=f"One of {_NAMES}, or all.")] = "baseline",
    array: machine_options.ArrayShape = "4x4",
    second_array: machine_options.SecondArray = "2x2",
    seed: Annotated[int, typer.Option(min=1, help="Where the placer starts.")] = 1,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Place and route designs on an FPGA whose tools are open, Lattice's ECP5-85, and tell the clock they reach.

    Memories have an eighth of their words, so that they fit. It has 156 multipliers: 12x15 PEs do not fit.

    Try:

    - `adagp hardware place`: the baseline of 4x4 PEs, in minutes.
    - `adagp hardware place --design all`: the routing of LOW may take more than an hour.
    - `adagp hardware place --design baseline --seed 2 --json`: another start, another clock.
    """
    del debug
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.rtl.placing import check_tools, place_and_route, with_small_memories
        from adagp.accelerator.rtl.top import Accelerator, geometries

        chosen = list(Design) if design == "all" else [parse_design(design)]
        sizes = parse_pes("array", array), parse_pes("second_array", second_array)
        all_cores = {each: with_small_memories(geometries(each, *sizes)) for each in chosen}
        check_tools()
        versions = {"yosys": YOSYS.version(), "nextpnr": NEXTPNR.version()}
        found = {}
        for each, cores in all_cores.items():
            display.on_message(f"placing and routing {each.value}, which takes minutes")
            found[each] = place_and_route(Accelerator(cores), seed)
    if as_json:
        setting = {"array": array, "second_array": second_array, "seed": seed, **versions}
        print_json({**setting, "designs": {each.value: asdict(placed) for each, placed in found.items()}})
        return
    print_table(placed_table(f"{array} PEs, placed and routed on an ECP5-85", found, versions))


@command
def power_command(
    design: Annotated[str, typer.Option("--design", help=f"One of {_NAMES}, or all.")] = "all",
    phase: Annotated[str, typer.Option(help="The batch on ADA-GP designs: gp or bp; the baseline runs BP.")] = "gp",
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    clock: Annotated[float, typer.Option(min=0.1, help="Clock period in ns.")] = 20.0,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Estimate power from the switching of every net while a design runs a batch, beside the paper's tables 4b and 5b.

    The gates' outputs are compared with the RTL's in every cycle. The exit code is 1 if one differs.

    Try:

    - `adagp hardware power`: four designs of 180 PEs, about five minutes.
    - `adagp hardware power --phase bp`: the same kind of batch on all four.
    - `adagp hardware power --design low --phase bp --array 4x3`
    """
    del debug
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.rtl.power import batch_energy, mac_energy_pj
        from adagp.accelerator.rtl.top import geometries

        if phase not in ("gp", "bp"):
            raise ValueError(f"phase={phase!r}: is unknown; choose one of gp, bp")
        chosen = list(Design) if design == "all" else [parse_design(design)]
        sizes = parse_pes("array", array), parse_pes("second_array", second_array)
        mac_pj, found = mac_energy_pj(), {}
        for each in chosen:
            which = Phase.GP if phase == "gp" and each is not Design.BASELINE else Phase.BP
            display.on_message(f"running a {which.value} batch on the gates of {each.value}")
            found[each] = batch_energy(each, which, geometries(each, *sizes))
    ours = {each: batch.milliwatts(clock, mac_pj) for each, batch in found.items()}
    if as_json:
        designs = {each.value: asdict(batch) for each, batch in found.items()}
        setting = {"array": array, "phase": phase, "clock_ns": clock, "mac_pj": mac_pj}
        print_json({**setting, "designs": designs, **paper.plain(ours)})
    else:
        print_table(power_table(f"Power of a {phase.upper()} batch, {array} PEs, mW", found, clock, mac_pj))
        if len(ours) > 1:
            print()
            print_table(paper.power_table(ours, phase))
    wrong = [each.value for each, batch in found.items() if batch.differences]
    if wrong:
        raise AdagpError(f"the gates do not do what the RTL does: {', '.join(wrong)}")


@command
def prove_command(as_json: options.Json = False, debug: options.Debug = False) -> None:
    """Prove by yosys' SAT solver that units lose no word, keep their order and never block, for all inputs.

    Each proof starts from reset and is bounded: it tries all inputs for a number of cycles. The exit code is 1 if one
    fails.

    Try:

    - `adagp hardware prove`: six properties, about a minute.
    """
    del debug
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.rtl.formal import PROPERTIES, prove

        found = {}
        for name, each in PROPERTIES.items():
            display.on_message(f"proving {name}")
            found[name] = prove(each.build(), each.cycles), each.cycles
    if as_json:
        print_json({name: {"holds": holds, "cycles": cycles} for name, (holds, cycles) in found.items()})
    else:
        print_table(proofs_table(found))
    if failed := [name for name, (holds, _) in found.items() if not holds]:
        raise AdagpError(f"does not hold: {', '.join(failed)}")


@command
def coverage_command(as_json: options.Json = False, debug: options.Debug = False) -> None:
    """Count the kinds of descriptors that the programs of `adagp hardware report` contain; clocks nothing.

    The programs are compiled. A kind is an operation, a value of a field, or a wait. What the units do with a
    descriptor is compared by `check`, `run` and `report`.

    Try:

    - `adagp hardware coverage`: a line for every kind; NONE where none does.
    """
    del debug
    with refusals():
        from adagp.accelerator.rtl.coverage import batch_descriptors, counted

        found = counted(batch_descriptors())
    if as_json:
        print_json(found)
        return
    print_table(coverage_table(found))


def parse_design(name: str) -> Design:
    """The design of a name.

    Raises:
        ValueError: If there is none.
    """
    try:
        return Design(name)
    except ValueError:
        raise ValueError(f"design={name!r}: is unknown; choose one of {_NAMES}") from None


def parse_pes(name: str, text: str) -> tuple[int, int]:
    """Rows and columns of PEs from a text such as `12x15`."""
    array = parse_array(name, text, Array())
    return array.rows, array.columns
