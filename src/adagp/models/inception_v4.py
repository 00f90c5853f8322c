"""Inception-V4, after Szegedy et al. (2017), figures 3 to 9; modules are named as in timm."""

from functools import partial

import torch
from torch import Tensor, nn

from adagp.models.inception_conv import BasicConv2d, column, row
from adagp.models.initialisation import he_normal
from adagp.models.registry import IMAGENET, register


class Branches(nn.Module):
    """Parallel modules on the same input; their channels are concatenated in order."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, sum of out, H', W')."""
        return torch.cat([branch(x) for branch in self.children()], 1)


class InceptionC(nn.Module):
    """Figure 6: parallel 1x3 and 3x1 convolutions in branches that fork again."""

    def __init__(self) -> None:
        super().__init__()
        self.branch0 = BasicConv2d(1536, 256, 1)
        self.branch1_0 = BasicConv2d(1536, 384, 1)
        self.branch1_1a = row(384, 256, 3)
        self.branch1_1b = column(384, 256, 3)
        self.branch2_0 = BasicConv2d(1536, 384, 1)
        self.branch2_1 = column(384, 448, 3)
        self.branch2_2 = row(448, 512, 3)
        self.branch2_3a = row(512, 256, 3)
        self.branch2_3b = column(512, 256, 3)
        self.branch3 = _pooled(1536, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, 1536, H, W) to the same shape."""
        short = self.branch1_0(x)
        long = self.branch2_2(self.branch2_1(self.branch2_0(x)))
        parts = (
            self.branch0(x),
            self.branch1_1a(short),
            self.branch1_1b(short),
            self.branch2_3a(long),
            self.branch2_3b(long),
            self.branch3(x),
        )
        return torch.cat(parts, 1)


def _pooled(in_channels: int, out_channels: int) -> nn.Sequential:
    """3x3 average pooling that does not count padding, then 1x1."""
    return nn.Sequential(
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), BasicConv2d(in_channels, out_channels, 1)
    )


def _stem(in_channels: int, *, imagenet: bool) -> list[nn.Module]:
    """299x299x3 to 35x35x384; in the CIFAR form 32x32x3 to 16x16x384."""
    padding, stride = (0, 2) if imagenet else (1, 1)
    return [
        BasicConv2d(in_channels, 32, 3, stride=stride, padding=padding),
        BasicConv2d(32, 32, 3, padding=padding),
        BasicConv2d(32, 64, 3, padding=1),
        Branches(
            maxpool=nn.MaxPool2d(3, stride=2, padding=padding),
            conv=BasicConv2d(64, 96, 3, stride=2, padding=padding),
        ),
        Branches(
            branch0=nn.Sequential(BasicConv2d(160, 64, 1), BasicConv2d(64, 96, 3, padding=padding)),
            branch1=nn.Sequential(
                BasicConv2d(160, 64, 1), row(64, 64, 7), column(64, 64, 7), BasicConv2d(64, 96, 3, padding=padding)
            ),
        ),
        Branches(
            conv=BasicConv2d(192, 192, 3, stride=stride, padding=padding),
            maxpool=nn.MaxPool2d(3, stride=stride, padding=padding),
        ),
    ]


def _inception_a() -> Branches:
    """384 channels to 384, figure 4."""
    return Branches(
        branch0=BasicConv2d(384, 96, 1),
        branch1=nn.Sequential(BasicConv2d(384, 64, 1), BasicConv2d(64, 96, 3, padding=1)),
        branch2=nn.Sequential(
            BasicConv2d(384, 64, 1), BasicConv2d(64, 96, 3, padding=1), BasicConv2d(96, 96, 3, padding=1)
        ),
        branch3=_pooled(384, 96),
    )


def _reduction_a(padding: int) -> Branches:
    """384 channels to 1024 in half of the height and width, figure 7."""
    return Branches(
        branch0=BasicConv2d(384, 384, 3, stride=2, padding=padding),
        branch1=nn.Sequential(
            BasicConv2d(384, 192, 1),
            BasicConv2d(192, 224, 3, padding=1),
            BasicConv2d(224, 256, 3, stride=2, padding=padding),
        ),
        branch2=nn.MaxPool2d(3, stride=2, padding=padding),
    )


def _inception_b() -> Branches:
    """1024 channels to 1024, figure 5."""
    return Branches(
        branch0=BasicConv2d(1024, 384, 1),
        branch1=nn.Sequential(BasicConv2d(1024, 192, 1), row(192, 224, 7), column(224, 256, 7)),
        branch2=nn.Sequential(
            BasicConv2d(1024, 192, 1), column(192, 192, 7), row(192, 224, 7), column(224, 224, 7), row(224, 256, 7)
        ),
        branch3=_pooled(1024, 128),
    )


def _reduction_b(padding: int) -> Branches:
    """1024 channels to 1536 in half of the height and width, figure 8."""
    return Branches(
        branch0=nn.Sequential(BasicConv2d(1024, 192, 1), BasicConv2d(192, 192, 3, stride=2, padding=padding)),
        branch1=nn.Sequential(
            BasicConv2d(1024, 256, 1),
            row(256, 256, 7),
            column(256, 320, 7),
            BasicConv2d(320, 320, 3, stride=2, padding=padding),
        ),
        branch2=nn.MaxPool2d(3, stride=2, padding=padding),
    )


class InceptionV4(nn.Module):
    """A stem, 4 + 7 + 3 Inception modules with reductions between, mean pooling, one linear layer.

    The CIFAR form has the same modules with the same weights but two strides of the stem left out, and everything
    padded: a 32x32 image is 16x16, 8x8 and at last 4x4 positions large. The paper's dropout of 0.2 is in the ImageNet
    form only. Initialised by He et al., as the paper says nothing.
    """

    def __init__(self, *, imagenet: bool, num_classes: int, in_channels: int) -> None:
        super().__init__()
        padding = 0 if imagenet else 1
        self.features = nn.Sequential(
            *_stem(in_channels, imagenet=imagenet),
            *(_inception_a() for _ in range(4)),
            _reduction_a(padding),
            *(_inception_b() for _ in range(7)),
            _reduction_b(padding),
            *(InceptionC() for _ in range(3)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2 if imagenet else 0.0)
        self.last_linear = nn.Linear(1536, num_classes)
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.last_linear(self.dropout(self.avgpool(self.features(images)).flatten(1)))
        return logits


register("inception_v4")(partial(InceptionV4, imagenet=False))
register("inception_v4", IMAGENET, pixels=299, num_classes=1000)(partial(InceptionV4, imagenet=True))
