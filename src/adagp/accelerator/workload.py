"""A network as operations: every product its training makes, and what predicting a layer's gradient adds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from adagp.accelerator.shapes import LayerShape, Pass, require_count
from adagp.defaults import PREDICTOR_CHANNELS, PREDICTOR_GRID


@dataclass(frozen=True)
class LayerOp:
    """One product of the forward, and what training needs of it.

    Attributes:
        name: The module that owns the weight; for a product of two activations, the module that makes it.
        kind: `convolution`, `linear`, or `matmul` for a product of two activations.
        shape: Its sizes, for the whole batch.
        passes: The passes that training makes: the forward, and the gradients that are needed.
        covered: Whether `adagp` can supply the weight gradient.
        bias: Whether a bias is trained too.
        vector_words: Words that norms, activations, pooling and sums read between this product and the next.
        pooling: Stride and offset of the pooling before the next product: `size` positions become `(size + offset) //
            stride`. Empty if there is none.
    """

    name: str
    kind: str
    shape: LayerShape
    passes: tuple[Pass, ...]
    covered: bool = False
    bias: bool = False
    vector_words: int = 0
    pooling: tuple[int, ...] = ()

    @property
    def learns(self) -> bool:
        """Whether it has a weight that training changes; a product of two activations has none."""
        return self.kind != "matmul" and Pass.WEIGHT_GRAD in self.passes


def rebatch(ops: Sequence[LayerOp], traced: int, batch: int) -> list[LayerOp]:
    """The operations of a batch of another size than the traced one.

    Raises:
        ValueError: If the batch is empty.
    """
    require_count("batch", batch)
    return [_rebatched(op, traced, batch) for op in ops]


def _rebatched(op: LayerOp, traced: int, batch: int) -> LayerOp:
    shape = op.shape

    def scaled(count: int) -> int:
        return count * batch // traced

    if op.kind == "matmul":  # every sample has its own
        changed = replace(shape, c_in=scaled(shape.c_in), c_out=scaled(shape.c_out), groups=scaled(shape.groups))
    else:
        changed = replace(shape, batch=scaled(shape.batch))
    return replace(op, shape=changed, vector_words=scaled(op.vector_words))


@dataclass(frozen=True)
class PredictorShape:
    """The sizes of `adagp.predictors.PaperPredictor`, which the papers leave open; these are its defaults.

    Attributes:
        grid: Outputs are pooled to `grid x grid`.
        channels: Channels of its convolution.
    """

    grid: int = PREDICTOR_GRID
    channels: int = PREDICTOR_CHANNELS

    def __post_init__(self) -> None:
        """Refuse a predictor without inputs."""
        for name in ("grid", "channels"):
            require_count(f"predictor {name}", getattr(self, name))

    @property
    def features(self) -> int:
        """Inputs of its last layer, without the constant."""
        return self.grid * self.grid * self.channels

    def layers(self, op: LayerOp) -> tuple[LayerShape, LayerShape]:
        """The predictor's convolution and last layer when they predict one layer's gradient.

        Output units are its batch. The last layer has a constant among its inputs. It writes a row of the gradient, and
        one value for the bias, if there is one.
        """
        shape = op.shape
        row = shape.c_in // shape.groups * prod(shape.kernel)
        return (
            LayerShape(1, self.channels, (self.grid, self.grid), (3, 3), batch=shape.c_out),
            LayerShape(self.features + 1, row + op.bias, batch=shape.c_out),
        )
