"""Descriptors: one of 128 bits for each load, product or drain of a core.

`docs/hardware.md` explains each field, and a test checks that it names the right bits.
"""

from dataclasses import dataclass, fields
from enum import IntEnum

from amaranth.lib import data

from adagp.accelerator.rtl.geometry import COUNT_BITS, SHIFT_BITS, CoreGeometry
from adagp.accelerator.shapes import Gemm
from adagp.accelerator.systolic import ws_cycles

OVERHEAD_CYCLES = 3
"""Overhead of every descriptor: one cycle to accept it, and two until its last result is written."""


class Op(IntEnum):
    """The operation of a descriptor."""

    LOAD = 0
    PRODUCT = 1
    DRAIN = 2
    NONE = 3


class Memory(IntEnum):
    """The memory that a descriptor uses."""

    INPUTS = 0
    WEIGHTS = 1
    PREDICTOR = 2


class Mode(IntEnum):
    """How a sum is changed when it is drained."""

    PLAIN = 0
    RELU = 1
    UPDATE = 2
    MASK = 3


_FOLD_BITS = 12
_BITS = {
    "op": 2,
    "join": 1,
    "memory": 2,
    "mode": 2,
    "in_place": 1,
    "accumulate": 1,
    "shift": SHIFT_BITS,
    "pool_shift": SHIFT_BITS,
    "count": COUNT_BITS,
    "k_folds": _FOLD_BITS,
    "n_folds": _FOLD_BITS,
    "input_base": COUNT_BITS,
    "weight_base": COUNT_BITS,
    "output_base": COUNT_BITS,
    "pool_run": COUNT_BITS,
    "reserved": 3,
}
LAYOUT = data.StructLayout(_BITS)


@dataclass(frozen=True)
class Descriptor:
    """One descriptor; fields that its `op` does not use are ignored."""

    op: Op
    count: int = 1
    join: bool = False
    memory: Memory = Memory.WEIGHTS
    mode: Mode = Mode.PLAIN
    in_place: bool = False
    accumulate: bool = False
    shift: int = 0
    pool_shift: int = 0
    k_folds: int = 1
    n_folds: int = 1
    input_base: int = 0
    weight_base: int = 0
    output_base: int = 0
    pool_run: int = 0

    def __post_init__(self) -> None:
        """Refuse values that the fields cannot hold, and empty operations."""
        for field in fields(self):
            value = int(getattr(self, field.name))
            least = 1 if field.name in ("count", "k_folds", "n_folds") else 0
            if not least <= value < 1 << _BITS[field.name]:
                raise ValueError(f"{field.name}={value}: must be between {least} and {(1 << _BITS[field.name]) - 1}")

    def encode(self) -> int:
        """The descriptor as a number, the first field in the lowest bits."""
        return int(
            LAYOUT.const({field.name: int(getattr(self, field.name)) for field in fields(self)}).as_value().value
        )

    def cycles(self, geometry: CoreGeometry) -> int:
        """Cycles of the descriptor if nothing makes it wait."""
        return self.work_cycles(geometry) + OVERHEAD_CYCLES

    def work_cycles(self, geometry: CoreGeometry) -> int:
        """Cycles without the overhead; a product's are the accelerator model's."""
        match self.op:
            case Op.NONE:
                return 0
            case Op.LOAD:
                return self.count
            case Op.DRAIN:
                return self.count + (self.count // self.pool_run if self.pool_run else 0)
            case Op.PRODUCT:
                rows, columns = geometry.rows, geometry.columns
                return ws_cycles(Gemm(self.count, self.n_folds * columns, self.k_folds * rows), rows, columns)
