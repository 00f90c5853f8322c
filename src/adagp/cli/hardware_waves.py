"""`adagp hardware waves`: what units and channels did, from the waveforms of a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adagp.cli import options
from adagp.cli.common import check_pictures, command, print_files, print_json, print_table, refusals
from adagp.files import write_bytes
from adagp.report.plot import picture_format
from adagp.report.waves import waves_picture, waves_table


@command
def waves_command(
    vcd: Annotated[Path, typer.Argument(help="Waveforms that `adagp hardware run --vcd FILE` wrote.")],
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this file, .png or .svg.")] = None,
    first: Annotated[int, typer.Option(min=0, help="First cycle of the picture.")] = 0,
    cycles: Annotated[
        int | None, typer.Option(min=1, help="Cycles of the picture. Default: all from the first.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show what each unit and channel of a run did: a table of cycles, and a picture of when.

    Try:

    - `adagp hardware run --layer head.2 --batch 1 --array 4x4 --vcd head.vcd`: writes waveforms.
    - `adagp hardware waves head.vcd --picture head.png`: all of them.
    - `adagp hardware waves head.vcd --picture zoom.png --first 100 --cycles 200`: a part, beat by beat.
    """
    del debug
    check_pictures(picture)
    with refusals():
        from adagp.accelerator.rtl.waves import read_waves

        found = read_waves(vcd)
        last = max(waves.cycles for waves in found.values())
        if first >= last:
            raise ValueError(f"first={first}: there are {last:,} cycles, counted from 0; choose an earlier one")
    if picture is not None:
        shown = min(cycles or last, last - first)
        write_bytes(picture, waves_picture(found, vcd.name, first, shown, picture_format(picture)))
    if as_json:
        print_json({unit: asdict(waves) for unit, waves in found.items()})
        return
    print_table(waves_table(vcd.name, found))
    print_files(picture=picture)
