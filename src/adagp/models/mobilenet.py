"""MobileNet-V2 of width 1.0, after Sandler et al. (2018)."""

from collections.abc import Iterator

from torch import Tensor, nn

from adagp.models.initialisation import he_normal
from adagp.models.registry import IMAGENET, register

# Expansion, output channels, blocks, stride of the first block: table 2 of the paper.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_LAST = 1280


def _conv(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    ]


def _blocks() -> Iterator[tuple[int, int, int, int]]:
    """Input channels, output channels, stride and expansion of each block."""
    width = 32
    for expansion, out_width, blocks, stride in _STAGES:
        for index in range(blocks):
            yield width, out_width, stride if index == 0 else 1, expansion
            width = out_width


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


class ImageNetInvertedResidual(nn.Module):
    """The same block with its layers grouped and named as in torchvision."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = [nn.Sequential(*_conv(in_channels, hidden, 1))] if expansion > 1 else []
        layers.append(nn.Sequential(*_conv(hidden, hidden, 3, stride=stride, groups=hidden)))
        layers += [nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H/stride, W/stride)."""
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


@register("mobilenet_v2")
class MobileNetV2(nn.Module):
    """The CIFAR form: 2.2 M parameters for ten classes; no dropout, so that runs differ by their gradients only.

    The stem and the first 24-channel block have stride 1 instead of 2, so that a 32x32 image still has 4x4 positions
    at the end.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers = _conv(in_channels, 32, 3)
        for width, out_width, stride, expansion in _blocks():
            layers.append(InvertedResidual(width, out_width, 1 if out_width == 24 else stride, expansion))
        layers += _conv(_STAGES[-1][1], _LAST, 1)
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_LAST, num_classes))
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.head(self.features(images))
        return logits


@register("mobilenet_v2", IMAGENET, pixels=224, num_classes=1000)
class ImageNetMobileNetV2(nn.Module):
    """The published form, modules named as in torchvision, with its dropout of 0.2."""

    def __init__(self, *, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*_conv(in_channels, 32, 3, stride=2))]
        layers += [ImageNetInvertedResidual(*block) for block in _blocks()]
        layers.append(nn.Sequential(*_conv(_STAGES[-1][1], _LAST, 1)))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(_LAST, num_classes))
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return logits
