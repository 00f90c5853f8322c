"""Inception-V3, after Szegedy et al. (2016), "Rethinking the Inception Architecture"; named as in torchvision."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp.models.inception_conv import BasicConv2d, column, row
from adagp.models.registry import IMAGENET, register


class WithAuxiliary(NamedTuple):
    """The output of a network with an auxiliary head in training mode."""

    logits: Tensor
    aux_logits: Tensor


def _mean3(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 3, stride=1, padding=1)


class InceptionA(nn.Module):
    """Figure 5 of the paper: two 3x3 convolutions replace a 5x5; the published net kept one 5x5."""

    def __init__(self, in_channels: int, pool_features: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(in_channels, 64, 1)
        self.branch5x5_1 = BasicConv2d(in_channels, 48, 1)
        self.branch5x5_2 = BasicConv2d(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = BasicConv2d(in_channels, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, padding=1)
        self.branch_pool = BasicConv2d(in_channels, pool_features, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, 224 + pool_features, H, W)."""
        small = self.branch1x1(x)
        middle = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        pooled = self.branch_pool(_mean3(x))
        return torch.cat((small, middle, double, pooled), 1)


class InceptionB(nn.Module):
    """Figure 10: halves height and width; `padding` 1 keeps the last row and column of odd sizes."""

    def __init__(self, in_channels: int, padding: int) -> None:
        super().__init__()
        self.branch3x3 = BasicConv2d(in_channels, 384, 3, stride=2, padding=padding)
        self.branch3x3dbl_1 = BasicConv2d(in_channels, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, stride=2, padding=padding)
        self.pool = nn.MaxPool2d(3, stride=2, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, in + 480, H/2, W/2)."""
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat((self.branch3x3(x), double, self.pool(x)), 1)


class InceptionC(nn.Module):
    """Figure 6: 1x7 and 7x1 convolutions replace 7x7."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(in_channels, 192, 1)
        self.branch7x7_1 = BasicConv2d(in_channels, width, 1)
        self.branch7x7_2 = row(width, width, 7)
        self.branch7x7_3 = column(width, 192, 7)
        self.branch7x7dbl_1 = BasicConv2d(in_channels, width, 1)
        self.branch7x7dbl_2 = column(width, width, 7)
        self.branch7x7dbl_3 = row(width, width, 7)
        self.branch7x7dbl_4 = column(width, width, 7)
        self.branch7x7dbl_5 = row(width, 192, 7)
        self.branch_pool = BasicConv2d(in_channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, 768, H, W)."""
        single = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat((self.branch1x1(x), single, double, self.branch_pool(_mean3(x))), 1)


class InceptionD(nn.Module):
    """Halves height and width again."""

    def __init__(self, in_channels: int, padding: int) -> None:
        super().__init__()
        self.branch3x3_1 = BasicConv2d(in_channels, 192, 1)
        self.branch3x3_2 = BasicConv2d(192, 320, 3, stride=2, padding=padding)
        self.branch7x7x3_1 = BasicConv2d(in_channels, 192, 1)
        self.branch7x7x3_2 = row(192, 192, 7)
        self.branch7x7x3_3 = column(192, 192, 7)
        self.branch7x7x3_4 = BasicConv2d(192, 192, 3, stride=2, padding=padding)
        self.pool = nn.MaxPool2d(3, stride=2, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, in + 512, H/2, W/2)."""
        single = self.branch3x3_2(self.branch3x3_1(x))
        double = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat((single, double, self.pool(x)), 1)


class InceptionE(nn.Module):
    """Figure 7: parallel 1x3 and 3x1 convolutions."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(in_channels, 320, 1)
        self.branch3x3_1 = BasicConv2d(in_channels, 384, 1)
        self.branch3x3_2a = row(384, 384, 3)
        self.branch3x3_2b = column(384, 384, 3)
        self.branch3x3dbl_1 = BasicConv2d(in_channels, 448, 1)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = row(384, 384, 3)
        self.branch3x3dbl_3b = column(384, 384, 3)
        self.branch_pool = BasicConv2d(in_channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, 2048, H, W)."""
        single = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        parts = (
            self.branch1x1(x),
            self.branch3x3_2a(single),
            self.branch3x3_2b(single),
            self.branch3x3dbl_3a(double),
            self.branch3x3dbl_3b(double),
            self.branch_pool(_mean3(x)),
        )
        return torch.cat(parts, 1)


class InceptionAux(nn.Module):
    """The auxiliary classifier on the 17x17 feature map, which regularises training and is unused afterwards."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv0 = BasicConv2d(in_channels, 128, 1)
        self.conv1 = BasicConv2d(128, 768, 5)
        self.fc = nn.Linear(768, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, 17, 17) to (N, num_classes) logits.

        Raises:
            ValueError: for fewer positions, on which the head's 5x5 convolution does not fit.
        """
        if min(x.shape[2:]) < 17:
            raise ValueError(
                f"images: only {x.shape[2]}x{x.shape[3]} positions are left for the auxiliary head, which needs 17x17 "
                "while training: give images of 299x299 or more, or build the form cifar, which has no such head"
            )
        x = self.conv1(self.conv0(functional.avg_pool2d(x, 5, stride=3)))
        logits: Tensor = self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class InceptionV3(nn.Module):
    """A stem of convolutions, eleven Inception modules, mean pooling, one linear layer.

    The ImageNet form takes 299x299 images (75x75 at least where it does not train), has dropout of 0.5 and the
    auxiliary head: while training it returns `WithAuxiliary`, otherwise logits. `classification_loss` takes either.

    The CIFAR form has the same modules with the same weights but two strides of the stem and its second pooling left
    out, and everything padded: a 32x32 image is 16x16, 8x8 and at last 4x4 positions large, like the other
    networks of the zoo. It has neither dropout nor auxiliary head.
    """

    def __init__(self, *, imagenet: bool, num_classes: int, in_channels: int) -> None:
        super().__init__()
        padding = 0 if imagenet else 1
        self.Conv2d_1a_3x3 = BasicConv2d(in_channels, 32, 3, stride=2 if imagenet else 1, padding=padding)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, 3, padding=padding)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, padding=padding)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, 3, padding=padding)
        self.maxpool2 = nn.MaxPool2d(3, stride=2) if imagenet else nn.Identity()
        self.Mixed_5b = InceptionA(192, pool_features=32)
        self.Mixed_5c = InceptionA(256, pool_features=64)
        self.Mixed_5d = InceptionA(288, pool_features=64)
        self.Mixed_6a = InceptionB(288, padding)
        self.Mixed_6b = InceptionC(768, width=128)
        self.Mixed_6c = InceptionC(768, width=160)
        self.Mixed_6d = InceptionC(768, width=160)
        self.Mixed_6e = InceptionC(768, width=192)
        self.AuxLogits = InceptionAux(768, num_classes) if imagenet else None
        self.Mixed_7a = InceptionD(768, padding)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5 if imagenet else 0.0)
        self.fc = nn.Linear(2048, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        """Truncated normal with deviation 0.1 as in the published net, smaller in the auxiliary head's last layer."""
        deviations: dict[nn.Module, float] = {}
        if self.AuxLogits is not None:
            deviations = {self.AuxLogits.conv1.conv: 0.01, self.AuxLogits.fc: 0.001}
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=deviations.get(module, 0.1), a=-2, b=2)

    def forward(self, images: Tensor) -> Tensor | WithAuxiliary:
        """Map (N, C, H, W) to (N, num_classes) logits; the ImageNet form in training mode adds the auxiliary logits."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(x))))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        aux_logits = self.AuxLogits(x) if self.AuxLogits is not None and self.training else None
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        logits: Tensor = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return logits if aux_logits is None else WithAuxiliary(logits, aux_logits)


def classification_loss(output: Tensor | WithAuxiliary, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy for any classifier here; auxiliary logits have weight 0.4, as published."""
    if isinstance(output, WithAuxiliary):
        main, auxiliary = (
            functional.cross_entropy(logits, labels, label_smoothing=label_smoothing) for logits in output
        )
        return main + 0.4 * auxiliary
    return functional.cross_entropy(output, labels, label_smoothing=label_smoothing)


register("inception_v3")(partial(InceptionV3, imagenet=False))
register("inception_v3", IMAGENET, pixels=299, num_classes=1000)(partial(InceptionV3, imagenet=True))
