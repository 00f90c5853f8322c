"""The predictor's small convolution, as one matrix product.

On a grid of a few positions torch's convolution, and autograd through it, cost many times more to call than to compute.
The same sums as a product with a matrix, and their gradient written down, cost a few calls.
"""

import torch
from torch import Tensor, nn


class GridConvolution(nn.Module):
    """A 3 x 3 convolution of `(rows, grid x grid)`, followed by ReLU and a constant 1."""

    _taps: Tensor

    def __init__(self, channels: int, grid: int) -> None:
        """Initialise the weights as torch does."""
        super().__init__()
        like = nn.Conv2d(1, channels, 3, dtype=torch.float32)
        assert like.bias is not None
        self.weight, self.bias = like.weight, like.bias
        self._channels, self._positions = channels, grid * grid
        self.register_buffer("_taps", _taps(grid), persistent=False)
        self._known: tuple[Tensor, Tensor] | None = None

    def hidden(self, pooled: Tensor) -> Tensor:
        """`(rows, channels x grid x grid + 1)`; autograd takes no part."""
        with torch.no_grad():
            bias, matrix = self._matrix()
            return torch.addmm(bias, pooled, matrix).relu_()

    def _matrix(self) -> tuple[Tensor, Tensor]:
        """The bias and the matrix that stand for the convolution, until `changed` is called."""
        if self._known is not None:
            return self._known
        spread = torch.cat([self.weight.flatten(1), self.weight.new_zeros(self._channels, 1)], dim=1)
        matrix = spread[:, self._taps].transpose(0, 1).flatten(1)
        matrix = torch.cat([matrix, matrix.new_zeros(self._positions, 1)], dim=1)
        bias = torch.cat([self.bias.repeat_interleave(self._positions), self.bias.new_ones(1)])
        self._known = bias, matrix
        return self._known

    def changed(self) -> None:
        """Say that the weights were written to; fused optimizers do that without a trace in the tensors."""
        self._known = None

    def learn(self, pooled: Tensor, hidden: Tensor, grad_hidden: Tensor) -> None:
        """Put into `.grad` what backpropagation would, given the gradient at the features."""
        with torch.no_grad():
            grad = (grad_hidden * (hidden > 0))[:, :-1].reshape(len(pooled), self._channels, self._positions)
            grad_matrix = torch.einsum("rp,rcq->cpq", pooled, grad).flatten(1)
            sums = grad.new_zeros(self._channels, 10).index_add_(1, self._taps.flatten(), grad_matrix)
            # Fused optimizers read memory in order and ignore strides.
            self.weight.grad = sums[:, :9].contiguous().view(self.weight.shape)
            self.bias.grad = grad.sum((0, 2))


def _taps(grid: int) -> Tensor:
    """Which of a kernel's nine weights leads from each input position to each output position; 9 means none."""
    place = torch.arange(grid)
    offset = place[:, None] - place[None, :] + 1  # of one axis: input minus output, where 0 to 2 is inside the kernel
    inside = (offset >= 0) & (offset <= 2)
    taps = 3 * offset[:, None, :, None] + offset[None, :, None, :]
    taps = torch.where(inside[:, None, :, None] & inside[None, :, None, :], taps, 9)
    return taps.reshape(grid * grid, grid * grid)
