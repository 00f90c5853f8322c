"""The predictor's small convolution, as one matrix product.

On a grid of a few positions torch's convolution, and autograd through it, cost many times more to call than to compute.
The same sums as a product with a matrix, and their gradient written down, cost a few calls.
"""

import torch
from torch import Tensor, nn

_TAPS = 9


def initial_values(channels: int) -> Tensor:
    """The weights of all channels, then their biases, as torch initialises them."""
    like = nn.Conv2d(1, channels, 3, dtype=torch.float32)
    assert like.bias is not None
    return torch.cat([like.weight.detach().flatten(), like.bias.detach()])


class GridConvolution:
    """A 3 x 3 convolution of `(rows, grid x grid)`, followed by ReLU and a constant 1.

    Inputs have a constant 1 at their end, so that biases are entries of the matrix too. The matrix is linear in the
    weights and biases, and their gradient is the transposed map of the matrix's.
    """

    def __init__(self, values: Tensor, grid: int) -> None:
        """`values` are like `initial_values`, and changed elsewhere; `changed` must be called then."""
        channels = len(values) // (_TAPS + 1)
        self.values = values
        self._shape = (grid * grid + 1, channels * grid * grid + 1)
        places = _places(channels, grid).to(values.device)
        self._spread = (places.view(-1, 1) == torch.arange(len(values), device=values.device)).float()
        self._constant = torch.zeros_like(self._spread[:, 0])
        self._constant[-1] = 1
        self._matrix: Tensor | None = None

    def hidden(self, inputs: Tensor) -> Tensor:
        """`(rows, channels x grid x grid + 1)`."""
        if self._matrix is None:
            self._matrix = torch.addmv(self._constant, self._spread, self.values).view(self._shape)
        return (inputs @ self._matrix).relu_()

    def changed(self) -> None:
        """Say that the values were written to: the matrix is made again."""
        self._matrix = None

    def gradient(self, inputs: Tensor, hidden: Tensor, grad_hidden: Tensor) -> Tensor:
        """The gradient of the values, given that of what `hidden` returned."""
        grad_matrix = inputs.t() @ (grad_hidden * (hidden > 0))
        return self._spread.t().mv(grad_matrix.view(-1))


def _places(channels: int, grid: int) -> Tensor:
    """Which of the values each entry of the matrix is; -1 for a constant."""
    positions, channel = grid * grid, torch.arange(channels)
    place = torch.arange(grid)
    offset = place[:, None] - place[None, :] + 1  # of one axis: input minus output, where 0 to 2 is inside the kernel
    inside = (offset >= 0) & (offset <= 2)
    taps = 3 * offset[:, None, :, None] + offset[None, :, None, :]
    taps = torch.where(inside[:, None, :, None] & inside[None, :, None, :], taps, -1).reshape(positions, positions)
    of_channels = torch.where(taps[:, None] < 0, -1, channel[:, None] * _TAPS + taps[:, None]).flatten(1)
    biases = (channels * _TAPS + channel).repeat_interleave(positions)
    return torch.nn.functional.pad(torch.cat([of_channels, biases[None]]), (0, 1), value=-1)
