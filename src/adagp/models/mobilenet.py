"""MobileNet-V2 for 32x32 images, after Sandler et al. (2018)."""

from torch import Tensor, nn

from adagp.models.initialisation import he_normal
from adagp.models.registry import register

# Expansion, output channels, blocks, stride of the first block: table 2 of the paper. The stem and the first
# 24-channel block have stride 1 instead of 2, so that a 32x32 image still has 4x4 positions at the end.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    ]


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1 without activation; add the input if shapes agree."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers = _conv(in_channels, hidden, 1) if expansion > 1 else []
        layers += _conv(hidden, hidden, 3, stride=stride, groups=hidden)
        layers += [nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H/stride, W/stride)."""
        y: Tensor = self.body(x)
        return x + y if self.residual else y


@register("mobilenet_v2")
class MobileNetV2(nn.Module):
    """Width 1.0, 2.2 M parameters for ten classes; no dropout, so that runs differ by their gradients only."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers = _conv(in_channels, 32, 3)
        width = 32
        for expansion, out_width, blocks, stride in _STAGES:
            for index in range(blocks):
                layers.append(InvertedResidual(width, out_width, stride if index == 0 else 1, expansion))
                width = out_width
        layers += _conv(width, 1280, 1)
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, num_classes))
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.head(self.features(images))
        return logits
