"""The convolutions of both Inception networks."""

from torch import Tensor, nn
from torch.nn import functional


class BasicConv2d(nn.Module):
    """A convolution without bias, its norm and a ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H', W')."""
        return functional.relu(self.bn(self.conv(x)), inplace=True)


def row(in_channels: int, out_channels: int, length: int) -> BasicConv2d:
    """A convolution that is one pixel high."""
    return BasicConv2d(in_channels, out_channels, (1, length), padding=(0, length // 2))


def column(in_channels: int, out_channels: int, length: int) -> BasicConv2d:
    """A convolution that is one pixel wide."""
    return BasicConv2d(in_channels, out_channels, (length, 1), padding=(length // 2, 0))
