"""YOLO-v3, after Redmon and Farhadi (2018): Darknet-53 and predictions at three scales."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp.models.registry import register
from adagp.models.yolo.boxes import ANCHORS

_STRIDE = 32
_PRIOR = 0.01
"""Initial objectness: nearly all of the thousands of predictions are background."""


class ConvUnit(nn.Module):
    """A convolution without bias, its norm, and a leaky ReLU of slope 0.1."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H/stride, W/stride)."""
        return functional.leaky_relu(self.bn(self.conv(x)), 0.1, inplace=True)


class Residual(nn.Module):
    """1x1 to half of the channels, 3x3 back, and the input added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = ConvUnit(channels, channels // 2, 1)
        self.conv2 = ConvUnit(channels // 2, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (N, channels, H, W)."""
        out: Tensor = x + self.conv2(self.conv1(x))
        return out


def _stage(channels: int, residuals: int) -> nn.Sequential:
    """Halve height and width, double the channels."""
    return nn.Sequential(ConvUnit(channels // 2, channels, 3, 2), *(Residual(channels) for _ in range(residuals)))


class Darknet53(nn.Module):
    """The 52 convolutions of table 1 before its classifier."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.stem = ConvUnit(in_channels, 32, 3)
        self.stage1 = _stage(64, 1)
        self.stage2 = _stage(128, 2)
        self.stage3 = _stage(256, 8)
        self.stage4 = _stage(512, 8)
        self.stage5 = _stage(1024, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (N, C, H, W) to the maps of strides 8, 16 and 32, with 256, 512 and 1024 channels."""
        fine = self.stage3(self.stage2(self.stage1(self.stem(images))))
        middle = self.stage4(fine)
        return fine, middle, self.stage5(middle)


class Scale(nn.Module):
    """Predictions at one scale: five convolutions shared with the finer scale, one more, and a linear output."""

    def __init__(self, in_channels: int, channels: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvUnit(in_channels, channels, 1),
            ConvUnit(channels, 2 * channels, 3),
            ConvUnit(2 * channels, channels, 1),
            ConvUnit(channels, 2 * channels, 3),
            ConvUnit(2 * channels, channels, 1),
        )
        self.last = ConvUnit(channels, 2 * channels, 3)
        self.predict = nn.Conv2d(2 * channels, outputs, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, in, H, W) to features for the finer scale (N, channels, H, W) and predictions (N, outputs, H, W)."""
        shared = self.body(x)
        return shared, self.predict(self.last(shared))


def _image(*, in_channels: int, **_: int) -> tuple[tuple[int, ...], ...]:
    return ((in_channels, 416, 416),)


@register("yolo_v3", "voc", task="detection", inputs=_image, num_classes=20, in_channels=3)
class YoloV3(nn.Module):
    """Darknet-53 and three scales of three anchors each, for images of any height and width that 32 divides.

    Convolutions are initialised as He et al. with fan-in for the leaky ReLU, and objectness to 1 in 100.
    """

    def __init__(self, *, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self._anchors, self._values = len(ANCHORS[0]), 5 + num_classes
        outputs = self._anchors * self._values
        self.backbone = Darknet53(in_channels)
        self.coarse = Scale(1024, 512, outputs)
        self.to_middle = ConvUnit(512, 256, 1)
        self.middle = Scale(512 + 256, 256, outputs)
        self.to_fine = ConvUnit(256, 128, 1)
        self.fine = Scale(256 + 128, 128, outputs)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=0.1, nonlinearity="leaky_relu")
        for scale in (self.coarse, self.middle, self.fine):
            assert scale.predict.bias is not None
            nn.init.normal_(scale.predict.weight, std=0.01)
            nn.init.zeros_(scale.predict.bias)
            with torch.no_grad():
                scale.predict.bias.view(self._anchors, -1)[:, 4] = math.log(_PRIOR / (1 - _PRIOR))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (N, C, H, W) to raw predictions (N, anchors, H/s, W/s, 5 + num_classes) for s = 32, 16 and 8.

        The five are x, y, width, height and objectness; see `decode`, `detect` and `loss`.

        Raises:
            ValueError: for images whose height or width 32 does not divide.
        """
        height, width = images.shape[2:]
        if height % _STRIDE or width % _STRIDE:
            raise ValueError(
                f"images: height and width must be multiples of {_STRIDE}, got {height}x{width}: resize or pad"
            )
        fine, middle, coarse = self.backbone(images)
        shared, of_coarse = self.coarse(coarse)
        shared, of_middle = self.middle(torch.cat((_twice(self.to_middle(shared)), middle), 1))
        _, of_fine = self.fine(torch.cat((_twice(self.to_fine(shared)), fine), 1))
        return self._apart(of_coarse), self._apart(of_middle), self._apart(of_fine)

    def _apart(self, raw: Tensor) -> Tensor:
        """(N, anchors * values, H, W) to (N, anchors, H, W, values)."""
        apart: Tensor = raw.unflatten(1, (self._anchors, self._values))
        return apart.permute(0, 1, 3, 4, 2)


def _twice(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")
