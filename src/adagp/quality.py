"""Quality: how a predicted gradient compares with the true one, per layer and running.

Cosine says whether the direction helps, the norm ratio how large the step is compared with the true one. MSE and MAPE
are the paper's figures (section 6.1.2). MAPE, equation (1), divides by each true value: it is undefined where that is 0
and, because gradients crowd around 0, has no finite mean in theory. Entries smaller than `MAPE_FLOOR` times the
layer's root mean square are therefore left out. A prediction of nothing at all has a MAPE of 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAPE_FLOOR = 1e-3


@dataclass(frozen=True)
class GradientAlignment:
    """Inner products of one layer's prediction and true gradient in one batch, from which every figure follows."""

    dot: float
    predicted_square: float
    true_square: float
    count: int
    mape: float

    @property
    def cosine(self) -> float:
        """Cosine of the angle; 0 where either side is zero, since nothing then points anywhere."""
        scale = sqrt(self.predicted_square * self.true_square)
        return self.dot / scale if scale > 0 else 0.0

    @property
    def norm_ratio(self) -> float:
        """Norm of the prediction over that of the true gradient; 0 where that is zero."""
        return sqrt(max(self.predicted_square, 0.0) / self.true_square) if self.true_square > 0 else 0.0

    @property
    def mse(self) -> float:
        """Mean squared difference."""
        return max(self.predicted_square - 2 * self.dot + self.true_square, 0.0) / self.count


def mean_absolute_percentage_errors(predicted: Sequence["Tensor"], true: Sequence["Tensor"]) -> list[float]:
    """Equation (1) as a ratio for each pair of vectors, over the entries that have a meaningful one; 0 where none has.

    All pairs at once: a model has many layers, and a few operations for each would cost more than their arithmetic.
    """
    import torch  # here, so that schedules can be asked without it

    sizes = torch.tensor([vector.numel() for vector in true], device=true[0].device)
    owner = torch.repeat_interleave(sizes)
    flat_predicted, flat_true = torch.cat(list(predicted)), torch.cat(list(true))

    def sums(values: "Tensor") -> "Tensor":
        return values.new_zeros(len(sizes)).index_add_(0, owner, values)

    floor = MAPE_FLOOR * (sums(flat_true.square()) / sizes).sqrt()
    magnitude = flat_true.abs()
    keep = magnitude > floor[owner]
    ratio = torch.where(keep, (flat_true - flat_predicted).abs() / magnitude, 0.0)
    return (sums(ratio) / sums(keep.to(ratio.dtype)).clamp(min=1)).tolist()


def overall_cosine(alignments: Mapping[str, GradientAlignment]) -> float:
    """Cosine of the whole model's prediction with the whole true gradient, all layers as one vector."""
    return GradientAlignment(
        dot=sum(a.dot for a in alignments.values()),
        predicted_square=sum(a.predicted_square for a in alignments.values()),
        true_square=sum(a.true_square for a in alignments.values()),
        count=1,
        mape=0.0,
    ).cosine


_DECAY = 0.9
"""Weight of the past in each running figure; the first values are averaged evenly."""


@dataclass(frozen=True)
class LayerQuality:
    """Running quality of one layer's predictions, over the batches that had a true gradient to compare with.

    `trust` scales what is applied; 1 where the predictor has none.
    """

    cosine: float = 0.0
    norm_ratio: float = 0.0
    mse: float = 0.0
    mape: float = 0.0
    trust: float = 1.0
    batches: int = 0

    def after(self, alignment: GradientAlignment, trust: float) -> "LayerQuality":
        """The quality after one more batch."""
        weight = max(1 - _DECAY, 1 / (self.batches + 1))
        return LayerQuality(
            cosine=self.cosine + weight * (alignment.cosine - self.cosine),
            norm_ratio=self.norm_ratio + weight * (alignment.norm_ratio - self.norm_ratio),
            mse=self.mse + weight * (alignment.mse - self.mse),
            mape=self.mape + weight * (alignment.mape - self.mape),
            trust=trust,
            batches=self.batches + 1,
        )
