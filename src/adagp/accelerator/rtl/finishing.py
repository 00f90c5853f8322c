"""What happens to finished sums: they are rounded, masked or subtracted, pooled, and drained to DRAM."""

from dataclasses import dataclass

from adagp.accelerator.rtl.descriptor import Drain, Load, Memory, Mode
from adagp.accelerator.rtl.program import ONCE, Loop
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.tensors import Filters, Images


@dataclass(frozen=True)
class Resident:
    """A streamed operand that stays in the predictor's memory: (rows x channels), fold after fold.

    Attributes:
        base: First address.
        rows: Rows that a fold has.
    """

    base: int
    rows: int


@dataclass(frozen=True)
class Pool:
    """Where sums are pooled to, for the predictor.

    Attributes:
        cells: Cells along both axes; they divide the result evenly.
        out: Images of the cells.
        shift: Bits that a cell's sum is shifted right by.
        repeat: Pixels of `out` along both axes that take the same cell.
    """

    cells: tuple[int, int]
    out: Images
    shift: int
    repeat: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Finish:
    """What happens to finished sums.

    Attributes:
        out: Where they go: images, or filters for a weight gradient.
        shift: Bits that they are shifted right by.
        mode: What else happens to them.
        old: The operand of an update or a mask, laid out as `out`.
        in_place: Where in the predictor's memory the old words are, if they are there and are replaced.
        pool: Where the sums are pooled to, if they are.
    """

    out: Images | Filters
    shift: int
    mode: Mode = Mode.PLAIN
    old: Images | Filters | None = None
    in_place: Resident | None = None
    pool: Pool | None = None


@dataclass(frozen=True)
class Columns:
    """Some folds of the columns of a result: the first, how many, and of how many columns in all."""

    first: int
    count: int
    all: int
    wide: int

    def width(self, fold: int) -> int:
        """Columns of a fold."""
        return min(self.wide, self.all - (self.first + fold) * self.wide)


def drain_tile(
    builder: ProgramBuilder,
    finish: Finish,
    start: int,
    loops: tuple[Loop, ...],
    olds: tuple[Loop, ...],
    m: int,
    columns: Columns,
    half: int,
    last: int,
    *,
    pool_base: int = 0,
    pool_stride: int = 0,
    old_start: int = 0,
    place: int = 0,
) -> int:
    """Load the old words of a tile, if any, and drain its sums; returns the last drain."""
    if finish.in_place is not None:
        return _drain_in_place(builder, finish, finish.in_place, start, loops, m, columns, half, last, place)
    after, old_half, old_base = [last], 0, 0
    if finish.old is not None:
        old_half, old_base, loaded = _load_old(builder, old_start, olds, m, columns)
        after.append(loaded)
    drain = Drain(
        start + columns.first * columns.wide,
        columns.count * m,
        half,
        finish.mode,
        finish.shift,
        words=columns.width(0),
        tail=columns.width(columns.count - 1),
        old_base=old_base,
        pool_base=pool_base,
        pools=finish.pool is not None,
    )
    whole = (*loops, *(ONCE for _ in range(5 - len(loops))))
    index = builder.program.work(drain, (*whole, Loop(columns.count, columns.wide, pool_stride=pool_stride)), after)
    if finish.old is not None:
        builder.read_by(Memory.OLD, old_half, index)
    return index


def _drain_in_place(
    builder: ProgramBuilder,
    finish: Finish,
    resident: Resident,
    start: int,
    loops: tuple[Loop, ...],
    m: int,
    columns: Columns,
    half: int,
    last: int,
    place: int,
) -> int:
    """A drain for each fold of columns, whose old words are in the predictor's memory."""
    index = -1
    for fold in range(columns.count):
        width, number = columns.width(fold), columns.first + fold
        drain = Drain(
            start + number * columns.wide,
            m,
            half,
            finish.mode,
            finish.shift,
            words=width,
            tail=width,
            old_base=resident.base + number * resident.rows + place,
            output_base=fold * m,
            in_place=True,
        )
        index = builder.program.work(drain, loops, [last])
    return index


def _load_old(
    builder: ProgramBuilder, start: int, loops: tuple[Loop, ...], m: int, columns: Columns
) -> tuple[int, int, int]:
    """Load the old words of a tile: their half of the memory, its first address, and the last load."""
    half, base, readers = builder.next_half(Memory.OLD)
    index = -1
    for fold in range(columns.count):
        width, address = columns.width(fold), start + (columns.first + fold) * columns.wide
        load = Load(Memory.OLD, address, base + fold * m, width, width)
        index = builder.program.work(load, loops, readers)
    return half, base, index
