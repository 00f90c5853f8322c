"""The sizes of a core."""

from dataclasses import dataclass

from adagp.accelerator.array import Array

COUNT_BITS = 16
"""Bits of every count and address in a descriptor; they bound the memories' depth and the rows that stream."""
SHIFT_BITS = 6
"""Bits of a shift in a descriptor."""


@dataclass(frozen=True)
class CoreGeometry:
    """One array and its memories. Depths are words per bank; all banks of a buffer are read at once.

    Attributes:
        rows: Rows of PEs, and banks of the input buffer.
        columns: Columns of PEs, banks of the weight and output buffers, and lanes.
        width: Bits of an operand.
        sum_width: Bits of a partial sum, which wraps around on overflow.
        input_depth: Depth of the input buffer.
        weight_depth: Depth of the weight buffer.
        output_depth: Depth of the output buffer, which holds partial sums.
        predictor_depth: Depth of a second weight memory for the predictor's weights; 0 for none.
        pools: Whether the lanes can pool what they drain, for the predictor.
    """

    rows: int = Array.rows
    columns: int = Array.columns
    width: int = 16
    sum_width: int = 48
    input_depth: int = 4096
    weight_depth: int = 4096
    output_depth: int = 2048
    predictor_depth: int = 0
    pools: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be built, or would compute wrong results."""
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"array={self.rows}x{self.columns}: has no PE; rows and columns must be at least 1")
        if self.rows * self.columns == 1:
            raise ValueError("array=1x1: would read a partial sum before it is written; give at least 2 PEs")
        if self.rows + self.columns > 1 << COUNT_BITS:
            raise ValueError(
                f"array={self.rows}x{self.columns}: takes longer to cross than the controller can count; "
                f"rows and columns must be at most {1 << COUNT_BITS} together"
            )
        if self.width < 2:
            raise ValueError(f"width={self.width}: has no room for a sign and a value; give at least 2 bits")
        if self.sum_width < 2 * self.width:
            raise ValueError(f"sum_width={self.sum_width}: does not hold one product; give at least {2 * self.width}")
        if self.sum_width > 1 << SHIFT_BITS:
            raise ValueError(f"sum_width={self.sum_width}: is more than a descriptor can shift; give at most 64")
        for name in ("input_depth", "weight_depth", "output_depth", "predictor_depth"):
            depth = getattr(self, name)
            if not (name == "predictor_depth" and depth == 0) and not 2 <= depth <= 1 << COUNT_BITS:
                raise ValueError(f"{name}={depth}: must be between 2 and {1 << COUNT_BITS} words")

    @property
    def port_words(self) -> int:
        """Words that enter in one cycle: one per bank of the wider of the input and weight buffers."""
        return max(self.rows, self.columns)

    @property
    def memory_bits(self) -> int:
        """Bits of all memories."""
        inputs = self.rows * self.input_depth * self.width
        weights = self.columns * (self.weight_depth + self.predictor_depth) * self.width
        return inputs + weights + self.columns * self.output_depth * self.sum_width


def folds(whole: int, part: int) -> int:
    """Number of parts that cover the whole."""
    return -(-whole // part)
