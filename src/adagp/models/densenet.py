"""DenseNets with bottlenecks and compression: 121, 161, 169 and 201 layers, after Huang et al. (2017), table 1."""

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from adagp.models.registry import IMAGENET, register

_BOTTLENECK = 4


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1; norm, ReLU, 3x3: `growth` new channels from all previous ones of the block."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, _BOTTLENECK * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(_BOTTLENECK * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(_BOTTLENECK * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, in + growth, H, W)."""
        new = self.conv1(self.relu1(self.norm1(x)))
        new = self.conv2(self.relu2(self.norm2(new)))
        return torch.cat((x, new), 1)


def _block(in_channels: int, layers: int, growth: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            (f"denselayer{index + 1}", DenseLayer(in_channels + index * growth, growth)) for index in range(layers)
        )
    )


def _transition(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(in_channels),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(in_channels, out_channels, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


def _stem(in_channels: int, width: int, *, imagenet: bool) -> OrderedDict[str, nn.Module]:
    """For 32x32 images a single 3x3 convolution, as in the paper; the next layer begins with its own norm."""
    if not imagenet:
        return OrderedDict(conv0=nn.Conv2d(in_channels, width, 3, padding=1, bias=False))
    return OrderedDict(
        conv0=nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False),
        norm0=nn.BatchNorm2d(width),
        relu0=nn.ReLU(inplace=True),
        pool0=nn.MaxPool2d(3, stride=2, padding=1),
    )


class DenseNet(nn.Module):
    """A stem, four dense blocks with halving transitions between, mean pooling, one linear layer; named as torchvision.

    Initialised as the paper says: convolutions by He et al. with fan-in, the classifier's bias zero.
    """

    def __init__(
        self, growth: int, blocks: tuple[int, ...], *, imagenet: bool, num_classes: int, in_channels: int
    ) -> None:
        super().__init__()
        width = 2 * growth
        layers = _stem(in_channels, width, imagenet=imagenet)
        for index, count in enumerate(blocks, start=1):
            layers[f"denseblock{index}"] = _block(width, count, growth)
            width += count * growth
            if index < len(blocks):
                layers[f"transition{index}"] = _transition(width, width // 2)
                width //= 2
        layers["norm5"] = nn.BatchNorm2d(width)
        self.features = nn.Sequential(layers)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.classifier(self.avgpool(self.relu(self.features(images))).flatten(1))
        return logits


for _name, _growth, _blocks in (
    ("densenet121", 32, (6, 12, 24, 16)),
    ("densenet161", 48, (6, 12, 36, 24)),
    ("densenet169", 32, (6, 12, 32, 32)),
    ("densenet201", 32, (6, 12, 48, 32)),
):
    register(_name)(partial(DenseNet, _growth, _blocks, imagenet=False))
    register(_name, IMAGENET, pixels=224, num_classes=1000)(partial(DenseNet, _growth, _blocks, imagenet=True))
