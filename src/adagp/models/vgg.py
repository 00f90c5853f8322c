"""VGGs for 32x32 images, after Simonyan and Zisserman (2015), with batch normalisation."""

from torch import Tensor, nn

from adagp.models.initialisation import he_normal
from adagp.models.registry import register

_WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """3x3 convolutions in five stages, and a single linear classifier.

    The paper's three large linear layers are for 224x224 images; on CIFAR one layer from 512 features is usual.
    Images smaller than 32x32 work: a pooling leaves a single position as it is.
    """

    def __init__(self, depths: tuple[int, ...], *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = in_channels
        for out_width, depth in zip(_WIDTHS, depths, strict=True):
            for _ in range(depth):
                # A bias before a batch norm has no effect on the output, so there is none.
                layers += [
                    nn.Conv2d(width, out_width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(out_width),
                    nn.ReLU(inplace=True),
                ]
                width = out_width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.head(self.features(images))
        return logits


@register("vgg13")
def vgg13(*, num_classes: int = 10, in_channels: int = 3) -> VGG:
    """VGG-13: ten convolutions, 9.4 M parameters."""
    return VGG((2, 2, 2, 2, 2), num_classes=num_classes, in_channels=in_channels)


@register("vgg19")
def vgg19(*, num_classes: int = 10, in_channels: int = 3) -> VGG:
    """VGG-19: sixteen convolutions, 20 M parameters."""
    return VGG((2, 2, 4, 4, 4), num_classes=num_classes, in_channels=in_channels)
