"""Products that stream taps and channels past output gradients: weight gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.accelerator.rtl.correlating_program import CorrelatingProgram
from adagp.accelerator.rtl.finishing import Finish
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.tensors import Convolution, Images


@dataclass(frozen=True)
class Correlating:
    """A product that streams taps and channels: `out[tap, ci, co] = sum of x[pixel + tap, ci] g[pixel, co]`.

    Attributes:
        samples: Samples.
        layer: Sizes of the layer, of one group.
        x: The layer's inputs.
        g: The gradients of its outputs.
        finishes: What happens to the sums, one after the other.
    """

    samples: int
    layer: Convolution
    x: Images
    g: Images
    finishes: Sequence[Finish]

    def emit(self, builder: ProgramBuilder) -> None:
        """Add the product to a core's program."""
        CorrelatingProgram(self, builder).emit()
