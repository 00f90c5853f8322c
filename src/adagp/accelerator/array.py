"""The cost of a layer's pass on an array of PEs, under each dataflow."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adagp.accelerator.shapes import ADJOINT_PASS, MOST, LayerShape, Pass, require_count, require_known
from adagp.accelerator.systolic import SYSTOLIC

if TYPE_CHECKING:
    from adagp.accelerator.row_stationary import MappedPlanes, Planes

DATAFLOWS = (*SYSTOLIC, "rs")
"""What stays in the PEs: weights, outputs, inputs, or rows of all three."""


@dataclass(frozen=True)
class Array:
    """PEs in rows and columns, with their memories; by default ADA-GP's 180 PEs with the memories of Eyeriss.

    Attributes:
        rows: Rows of PEs.
        columns: Columns of PEs.
        buffer_words: Size of the global buffer.
        register_words: Size of each PE's registers; only the row-stationary mapping depends on it.
    """

    rows: int = 12
    columns: int = 15
    buffer_words: int = 98_304
    register_words: int = 256

    def __post_init__(self) -> None:
        """Refuse an array without PEs or memory."""
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"array={self}: has no PE; rows and columns must be at least 1")
        if self.rows * self.columns > MOST:
            raise ValueError(f"array={self}: has more than {MOST:,} PEs; give fewer")
        for name in ("buffer_words", "register_words"):
            require_count(name, getattr(self, name))

    def __str__(self) -> str:
        """Its shape as people write it, such as 12x15."""
        return f"{self.rows}x{self.columns}"

    @property
    def pes(self) -> int:
        """Number of PEs."""
        return self.rows * self.columns


@dataclass(frozen=True)
class PassCost:
    """One pass of a layer over a whole batch.

    Attributes:
        cycles: Cycles without stalls on memory.
        macs: Multiply-accumulates, the same under every dataflow.
        utilisation: Average share of PEs at work.
        dram_words: Words read from and written to DRAM.
        buffer_words: Words read from the global buffer and written back to it.
    """

    cycles: int
    macs: int
    utilisation: float
    dram_words: int
    buffer_words: int


def pass_cost(shape: LayerShape, which: Pass, array: Array, dataflow: str) -> PassCost:
    """Cost of a pass of a layer.

    Under `ws`, `os` and `is` each tensor is moved from or to DRAM once, without padding. Under `rs` the words are those
    of the mapping of least energy, padding included, as in nn-dataflow.

    Raises:
        ValueError: If the dataflow is unknown, or row-stationary cannot map the layer.
    """
    require_known("dataflow", dataflow, DATAFLOWS)
    gemm = shape.gemm(which)
    if dataflow == "rs":
        mapped = _row_stationary(shape, which, array)
        cycles, dram_words, buffer_words = (
            shape.groups * count for count in (mapped.cycles, mapped.dram_words, mapped.buffer_words)
        )
    else:
        cycles, buffer_words = (form(gemm, array.rows, array.columns) for form in SYSTOLIC[dataflow])
        dram_words = shape.words
    return PassCost(cycles, gemm.macs, gemm.macs / (cycles * array.pes), dram_words, buffer_words)


def layer_cost(shape: LayerShape, array: Array, dataflow: str) -> dict[Pass, PassCost]:
    """Cost of all three passes; the first layer of a network needs no input gradient."""
    return {which: pass_cost(shape, which, array, dataflow) for which in Pass}


def _row_stationary(shape: LayerShape, which: Pass, array: Array) -> "MappedPlanes":
    """The mapping of one group; groups run one after the other."""
    from adagp.accelerator.row_stationary import cut_to_fit  # imports numpy, which --help does not wait for

    planes = _planes(shape, which)
    mapped = cut_to_fit(planes, array.rows, array.columns, array.buffer_words, array.register_words)
    if mapped is None:
        raise ValueError(
            f"buffer_words={array.buffer_words}, register_words={array.register_words}: too few for one row-stationary "
            f"pass of the {which.value} of {shape}; give more, or choose another dataflow"
        )
    return mapped


def _planes(shape: LayerShape, which: Pass) -> "Planes":
    """A pass of one group as a convolution of planes.

    The input gradient is a convolution over output gradients that are spread apart by the stride. The weight gradient
    sums over samples; the output gradient is its filter, and the taps are its output.
    """
    from adagp.accelerator.row_stationary import Planes

    if shape.transposed:
        return _planes(shape.adjoint(), ADJOINT_PASS[which])
    c_in, c_out = shape.c_in // shape.groups, shape.c_out // shape.groups
    out, kernel, image = _plane(shape.out), _plane(shape.kernel), _plane(shape.image)
    stride, dilation = _plane(shape.stride), _plane(shape.dilation)
    match which:
        case Pass.FORWARD:
            return Planes(c_in, c_out, shape.batch, out, kernel, stride, dilation)
        case Pass.INPUT_GRAD:
            return Planes(c_out, c_in, shape.batch, image, kernel, (1, 1), dilation, stride)
        case Pass.WEIGHT_GRAD:
            return Planes(shape.batch, c_out, c_in, kernel, out, dilation, stride)


def _plane(sizes: tuple[int, ...]) -> tuple[int, int]:
    if len(sizes) > 2:
        raise ValueError(
            f"dataflow='rs': maps convolutions of one and two dimensions, not of {len(sizes)}; choose ws, os or is"
        )
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
