"""ResNets with bottleneck blocks: 50, 101 and 152 layers, after He et al. (2016), table 1."""

from functools import partial

from torch import Tensor, nn

from adagp.models.initialisation import he_normal
from adagp.models.registry import IMAGENET, register

_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut, which is a projection if the shape changes.

    The 3x3 convolution has the stride, not the first 1x1 as in the paper: what is known as ResNet v1.5, and what the
    published weights are for.
    """

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * _EXPANSION
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, 4 * width, H/stride, W/stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(y)
        return out


def _stage(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Blocks of one width; the first of them has the stride."""
    rest = (Bottleneck(width * _EXPANSION, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(in_channels, width, stride), *rest)


class ResNet(nn.Module):
    """A stem, four stages of bottleneck blocks, mean pooling and one linear layer; modules are named as in torchvision.

    The ImageNet form begins with a 7x7 convolution and a pooling, both of stride 2. On 32x32 images that would leave
    one position in the end, so the CIFAR form begins with a 3x3 convolution of stride 1 alone, and ends at 4x4.
    """

    def __init__(self, blocks: tuple[int, ...], *, imagenet: bool, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = (
            nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            if imagenet
            else nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if imagenet else nn.Identity()
        self.layer1 = _stage(64, 64, blocks[0], 1)
        self.layer2 = _stage(256, 128, blocks[1], 2)
        self.layer3 = _stage(512, 256, blocks[2], 2)
        self.layer4 = _stage(1024, 512, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, num_classes)
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


for _name, _blocks in {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}.items():
    register(_name)(partial(ResNet, _blocks, imagenet=False))
    register(_name, IMAGENET, pixels=224, num_classes=1000)(partial(ResNet, _blocks, imagenet=True))
