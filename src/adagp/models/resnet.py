"""ResNets for 32x32 images, after He et al., "Deep Residual Learning for Image Recognition" (2016), section 4.2."""

from torch import Tensor, nn
from torch.nn import functional

from adagp.models.initialisation import he_normal
from adagp.models.registry import register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut of option A: subsample, and pad the new channels with zeros.

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


class ResNet(nn.Module):
    """A 3x3 stem, three stages of `blocks` blocks with 16, 32 and 64 channels, mean pooling, one linear layer.

    Depth is `6 * blocks + 2` counted as the paper does.
    """

    def __init__(self, blocks: int, *, num_classes: int = 10, in_channels: int = 3) -> None:
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


@register("resnet14")
def resnet14(*, num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-14: two blocks a stage, 0.17 M parameters."""
    return ResNet(2, num_classes=num_classes, in_channels=in_channels)


@register("resnet20")
def resnet20(*, num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-20: three blocks a stage, 0.27 M parameters."""
    return ResNet(3, num_classes=num_classes, in_channels=in_channels)
