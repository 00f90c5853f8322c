"""The sizes of a core."""

from dataclasses import dataclass

from adagp.accelerator.array import Array

COUNT_BITS = 16
"""Bits of every count and on-chip address in a descriptor; they bound the memories' depth and the rows that stream."""
ADDRESS_BITS = 28
"""Bits of a DRAM address, in words."""
SHIFT_BITS = 6
"""Bits of a shift in a descriptor."""
MOST_BANKS = 48
"""The most rows or columns of an array: a descriptor has one bit for each bank."""


@dataclass(frozen=True)
class CoreGeometry:
    """One array and its memories. Depths are words per bank; all banks of a memory are read at once.

    Attributes:
        rows: Rows of PEs, and banks of the input buffer.
        columns: Columns of PEs, banks of the weight and output buffers, and lanes.
        width: Bits of an operand.
        sum_width: Bits of a partial sum, which wraps around on overflow.
        input_depth: Depth of the input buffer; programs use its halves in turn.
        weight_depth: Depth of the weight buffer; programs use its halves in turn.
        output_depth: Depth of each half of the output buffer, which holds partial sums.
        old_depth: Depth of the buffer for the old words of updates and masks; programs use its halves in turn.
        predictor_depth: Depth of a second input memory for the predictor's weights; 0 for none.
        pool_depth: Depth of the memory in which the lanes pool for the predictor; 0 for none.
    """

    rows: int = Array.rows
    columns: int = Array.columns
    width: int = 16
    sum_width: int = 48
    input_depth: int = 16384
    weight_depth: int = 8192
    output_depth: int = 2048
    old_depth: int = 4096
    predictor_depth: int = 0
    pool_depth: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be built, or would compute wrong results."""
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"array={self.rows}x{self.columns}: has no PE; rows and columns must be at least 1")
        if self.rows * self.columns == 1:
            raise ValueError("array=1x1: would read a partial sum before it is written; give at least 2 PEs")
        if max(self.rows, self.columns) > MOST_BANKS:
            raise ValueError(
                f"array={self.rows}x{self.columns}: has more banks than a descriptor names; "
                f"rows and columns must be at most {MOST_BANKS}"
            )
        if self.width < 2:
            raise ValueError(f"width={self.width}: has no room for a sign and a value; give at least 2 bits")
        if self.sum_width < 2 * self.width:
            raise ValueError(f"sum_width={self.sum_width}: does not hold one product; give at least {2 * self.width}")
        if self.sum_width > 1 << SHIFT_BITS:
            raise ValueError(f"sum_width={self.sum_width}: is more than a descriptor can shift; give at most 64")
        for name in ("input_depth", "weight_depth", "output_depth", "old_depth", "predictor_depth", "pool_depth"):
            depth = getattr(self, name)
            optional = name in ("predictor_depth", "pool_depth") and depth == 0
            if not optional and not 2 <= depth <= 1 << COUNT_BITS:
                raise ValueError(f"{name}={depth}: must be between 2 and {1 << COUNT_BITS} words")

    @property
    def beat_words(self) -> int:
        """Words of a DRAM beat: one per bank of the wider side of the array."""
        return max(self.rows, self.columns)

    @property
    def predictor_banks(self) -> int:
        """Banks of the predictor's memory, which a fold both streams from and is drained into."""
        return min(self.rows, self.columns)

    @property
    def memory_bits(self) -> int:
        """Bits of all memories."""
        inputs = self.rows * self.input_depth + self.predictor_banks * self.predictor_depth
        weights = self.columns * (self.weight_depth + self.old_depth)
        sums = self.columns * (2 * self.output_depth + self.pool_depth)
        return (inputs + weights) * self.width + sums * self.sum_width


def folds(whole: int, part: int) -> int:
    """Number of parts that cover the whole."""
    return -(-whole // part)
