"""Products that stream pixels past filters: a layer's forward and input gradient, the predictor's layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.accelerator.rtl.finishing import Finish, Resident
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.sliding_program import SlidingProgram
from adagp.accelerator.rtl.tensors import Filters, Images


@dataclass(frozen=True)
class Sliding:
    """A product that streams pixels.

    Attributes:
        samples: Samples.
        out: Height and width of the result.
        k: Channels of the streamed images.
        n: Channels of the result.
        image: Height and width of the stored images.
        kernel: Taps of the window along both axes.
        x: The streamed images, or a resident operand.
        w: The filters.
        finishes: What happens to the sums, one after the other.
        step: Step of the window along both axes.
        padding: Zeros before the first pixel along both axes; negative to begin inside.
        dilation: Distance of the taps along both axes.
        apart: Distance of the stored pixels along both axes, with zeros between them.
        narrow: Whether a fold of results has only as many columns as the predictor's memory has banks.
    """

    samples: int
    out: tuple[int, int]
    k: int
    n: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    x: Images | Resident
    w: Filters
    finishes: Sequence[Finish]
    step: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    apart: tuple[int, int] = (1, 1)
    narrow: bool = False

    def emit(self, builder: ProgramBuilder) -> None:
        """Add the product to a core's program."""
        SlidingProgram(self, builder).emit()
