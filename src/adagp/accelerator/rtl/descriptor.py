"""Descriptors: the 128-bit commands of a core.

Each goes to one of three units, which work at the same time: the loader, the array and the drainer. Tokens keep them in
step. A descriptor may wait for a token of another unit before it starts, and give one to another unit when it is done.
`docs/hardware.md` explains each field, and a test checks that it names the right bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter, le
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from amaranth.hdl import Shape, signed
from amaranth.lib import data

from adagp.accelerator.rtl.geometry import ADDRESS_BITS, COUNT_BITS, MOST_BANKS, SHIFT_BITS

if TYPE_CHECKING:  # Amaranth's enumerations are Python's, with a shape
    from enum import IntEnum
else:
    from amaranth.lib.enum import IntEnum

LEVELS = 6
"""Loops of an address generator."""


class Op(IntEnum, shape=3):
    """The operation of a descriptor."""

    BARRIER = 0
    LEVEL = 1
    OFFSET = 2
    LOAD = 3
    PRODUCT = 4
    DRAIN = 5


class Unit(IntEnum, shape=2):
    """The unit that executes a descriptor."""

    LOADER = 0
    ARRAY = 1
    DRAINER = 2


class Memory(IntEnum, shape=2):
    """A memory that is loaded or multiplied from."""

    INPUTS = 0
    WEIGHTS = 1
    OLD = 2
    PREDICTOR = 3


class Mode(IntEnum, shape=2):
    """How a sum is changed when it is drained."""

    PLAIN = 0
    RELU = 1
    UPDATE = 2
    MASK = 3


_WORDS_BITS = MOST_BANKS.bit_length()
_HEADER = {"op": Op, "unit": Unit, "waits": 3, "signals": 3}
_FIELDS = {
    Op.BARRIER: {"join": 1},
    Op.LEVEL: {
        "level": 3,
        "count": COUNT_BITS,
        "stride": signed(ADDRESS_BITS),
        "low": COUNT_BITS,
        "high": COUNT_BITS,
        "pool_stride": COUNT_BITS,
    },
    Op.OFFSET: {"row": 8, "offset": COUNT_BITS},
    Op.LOAD: {
        "memory": Memory,
        "base": ADDRESS_BITS,
        "to": COUNT_BITS,
        "words": _WORDS_BITS,
        "tail": _WORDS_BITS,
        "column": 1,
        "banks": MOST_BANKS,
    },
    Op.PRODUCT: {
        "memory": Memory,
        "count": COUNT_BITS,
        "k_folds": COUNT_BITS,
        "n_folds": COUNT_BITS,
        "input_base": COUNT_BITS,
        "weight_base": COUNT_BITS,
        "accumulate": 1,
        "half": 1,
    },
    Op.DRAIN: {
        "base": ADDRESS_BITS,
        "count": COUNT_BITS,
        "half": 1,
        "mode": Mode,
        "shift": SHIFT_BITS,
        "words": _WORDS_BITS,
        "tail": _WORDS_BITS,
        "old_base": COUNT_BITS,
        "output_base": COUNT_BITS,
        "pool_base": COUNT_BITS,
        "in_place": 1,
        "pools": 1,
        "from_pool": 1,
        "clears": 1,
    },
}
DESCRIPTOR_BITS = 128
HEADER = data.StructLayout(_HEADER)
LAYOUTS = {op: data.StructLayout({**_HEADER, **own}) for op, own in _FIELDS.items()}
"""The fields of each operation, the first in the lowest bits."""


@dataclass(frozen=True)
class _Descriptor:
    op: ClassVar[Op]
    unit: ClassVar[Unit]

    def __post_init__(self) -> None:
        """Refuse values that the fields cannot hold."""
        kind: Any = type(self)
        limits = _limits(kind)
        values = limits.values_of(self)
        if all(map(le, limits.least, values)) and all(map(le, values, limits.greatest)):
            return
        for name, low, value, high in zip(limits.names, limits.least, values, limits.greatest, strict=True):
            if not low <= value <= high:
                raise ValueError(f"{name}={int(value)}: must be between {low} and {high}")

    def encode(self) -> int:
        """The descriptor as a number, the first field in the lowest bits."""
        return _encoded(self)


class _Limits(NamedTuple):
    """The least and the greatest value of each field of a kind of descriptor."""

    names: tuple[str, ...]
    least: tuple[int, ...]
    greatest: tuple[int, ...]
    values_of: Callable[[_Descriptor], tuple[int, ...]]


@cache
def _limits(kind: type[Any]) -> _Limits:
    """Kept, because programs have hundreds of thousands of descriptors."""
    names = tuple(field.name for field in fields(kind))
    positive = {"count", "k_folds", "n_folds"} | ({"words"} if kind.op is Op.LOAD else set())
    shapes = [Shape.cast({**_HEADER, **_FIELDS[kind.op]}[name]) for name in names]
    least = (-(1 << shape.width - 1) if shape.signed else 0 for shape in shapes)
    return _Limits(
        names,
        tuple(1 if name in positive else low for name, low in zip(names, least, strict=True)),
        tuple((1 << shape.width - shape.signed) - 1 for shape in shapes),
        attrgetter(*names) if len(names) > 1 else lambda one: (getattr(one, names[0]),),  # of one name, it is no tuple
    )


@cache
def _encoded(descriptor: _Descriptor) -> int:
    """A network's programs repeat the same descriptors in every batch."""
    values = {field.name: getattr(descriptor, field.name) for field in fields(descriptor)}
    layout = LAYOUTS[descriptor.op]
    return int(layout.const({"op": descriptor.op, "unit": descriptor.unit} | values).as_value().value)


@dataclass(frozen=True)
class Barrier(_Descriptor):
    """Waits until all units are idle; if it joins, also until the other core is at such a barrier."""

    op = Op.BARRIER
    unit = Unit.LOADER
    join: bool = False


@dataclass(frozen=True)
class Level(_Descriptor):
    """One loop of a unit's address generator, the innermost is level 0. It stays until it is set again.

    Attributes:
        unit: The unit.
        level: The loop.
        count: Its iterations.
        stride: What an iteration adds to the address.
        low: The first iteration that reads DRAM; the loader fills in zeros for those before.
        high: The first iteration after those that read DRAM.
        pool_stride: What an iteration adds to the address in the pooling memory.
    """

    op = Op.LEVEL
    unit: Unit  # type: ignore[misc]
    level: int
    count: int = 1
    stride: int = 0
    low: int = 0
    high: int = 1
    pool_stride: int = 0


@dataclass(frozen=True)
class Offset(_Descriptor):
    """What a row adds to the input address, so that rows can hold different taps. It stays until it is set again."""

    op = Op.OFFSET
    unit = Unit.ARRAY
    row: int
    offset: int


@dataclass(frozen=True)
class Load(_Descriptor):
    """Reads a beat of DRAM at every address of the loader's loops, and fills a memory from address `to` on.

    Attributes:
        memory: The memory.
        base: First DRAM address.
        to: First address in the memory.
        words: Words of a beat.
        tail: Words of a beat that are read in the last iteration of level 0; the rest are zeros.
        column: Whether the words of a beat follow each other in the same banks, instead of each having its bank.
        banks: One bit for each bank that is written.
        waits: Units whose tokens it takes, one bit each.
        signals: Units that it gives a token to, one bit each.
    """

    op = Op.LOAD
    unit = Unit.LOADER
    memory: Memory
    base: int
    to: int
    words: int
    tail: int
    column: bool = False
    banks: int = (1 << MOST_BANKS) - 1
    waits: int = 0
    signals: int = 0


@dataclass(frozen=True)
class Product(_Descriptor):
    """Streams `count` rows through `k_folds x n_folds` folds of weights.

    Attributes:
        memory: `INPUTS` or `PREDICTOR`, where the rows are.
        count: Rows that stream in a fold: the product of the counts of levels 0 to 2.
        k_folds: Folds that are added up: the product of the counts of levels 3 to 5.
        n_folds: Folds of columns.
        input_base: First input address.
        weight_base: First weight address.
        accumulate: Whether to add to what the output buffer holds.
        half: The half of the output buffer.
        waits: Units whose tokens it takes, one bit each.
        signals: Units that it gives a token to, one bit each.
    """

    op = Op.PRODUCT
    unit = Unit.ARRAY
    memory: Memory
    count: int
    k_folds: int = 1
    n_folds: int = 1
    input_base: int = 0
    weight_base: int = 0
    accumulate: bool = False
    half: int = 0
    waits: int = 0
    signals: int = 0


@dataclass(frozen=True)
class Drain(_Descriptor):
    """Rounds rows of the output buffer to operands, and writes one beat for each to the addresses of its loops.

    Attributes:
        base: First DRAM address.
        count: Rows.
        half: The half of the output buffer.
        mode: What happens to a sum.
        shift: Bits that a sum is shifted right by.
        words: Words of a beat; none leaves DRAM as it is.
        tail: Words of a beat in the last iteration of level 5.
        old_base: First address of the old words; with `in_place`, in the predictor's memory.
        output_base: First row.
        pool_base: First address in the pooling memory that sums are added to.
        in_place: Whether the old words are those of the predictor's memory, and are replaced.
        pools: Whether every sum is also added to a word of the pooling memory.
        from_pool: Whether rows of the pooling memory are drained instead.
        clears: Whether these are set to zero.
        waits: Units whose tokens it takes, one bit each.
        signals: Units that it gives a token to, one bit each.
    """

    op = Op.DRAIN
    unit = Unit.DRAINER
    base: int
    count: int
    half: int = 0
    mode: Mode = Mode.PLAIN
    shift: int = 0
    words: int = 1
    tail: int = 1
    old_base: int = 0
    output_base: int = 0
    pool_base: int = 0
    in_place: bool = False
    pools: bool = False
    from_pool: bool = False
    clears: bool = False
    waits: int = 0
    signals: int = 0


Descriptor = Barrier | Level | Offset | Load | Product | Drain


def payload(op: Op, bits: Any) -> Any:
    """The fields of an operation in a 128-bit signal."""
    layout = LAYOUTS[op]
    return data.View(layout, bits[: layout.size])
