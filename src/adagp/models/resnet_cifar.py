"""ResNet-8, ResNet-14 and ResNet-20 for 32x32 images only, after He et al. (2016), section 4.2."""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from adagp.models.initialisation import he_normal
from adagp.models.registry import register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut of option A: subsample, and pad the new channels with zeros.

    Option A has no parameters; it is what the paper uses on CIFAR, and gives ResNet-20 its 0.27 M.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.stride = stride
        self.new_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H/stride, W/stride)."""
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            before = self.new_channels // 2
            x = functional.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        y += x
        out: Tensor = self.relu(y)
        return out


class SmallResNet(nn.Module):
    """A 3x3 stem, three stages of `blocks` blocks with 16, 32 and 64 channels, mean pooling, one linear layer.

    Depth is `6 * blocks + 2` counted as the paper does.
    """

    def __init__(self, blocks: int, *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        stages: list[nn.Module] = []
        width = 16
        for out_width, stride in ((16, 1), (32, 2), (64, 2)):
            stage = [BasicBlock(width, out_width, stride)]
            stage += [BasicBlock(out_width, out_width, 1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(*stage))
            width = out_width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.head(self.stages(self.stem(images)))
        return logits


for _name, _blocks in {"resnet8": 1, "resnet14": 2, "resnet20": 3}.items():
    register(_name)(partial(SmallResNet, _blocks))
