"""VGGs with batch normalisation, after Simonyan and Zisserman (2015)."""

from functools import partial

from torch import Tensor, nn

from adagp.models.initialisation import he_normal
from adagp.models.registry import IMAGENET, register

_WIDTHS = (64, 128, 256, 512, 512)


def _features(depths: tuple[int, ...], in_channels: int, *, bias: bool, ceil_mode: bool) -> nn.Sequential:
    """Five stages of 3x3 convolutions, each stage ending with a pooling of stride 2."""
    layers: list[nn.Module] = []
    width = in_channels
    for out_width, depth in zip(_WIDTHS, depths, strict=True):
        for _ in range(depth):
            layers += [
                nn.Conv2d(width, out_width, 3, padding=1, bias=bias),
                nn.BatchNorm2d(out_width),
                nn.ReLU(inplace=True),
            ]
            width = out_width
        layers.append(nn.MaxPool2d(2, ceil_mode=ceil_mode))
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """The CIFAR form: 3x3 convolutions in five stages, and a single linear classifier.

    The paper's three large linear layers are for 224x224 images; on CIFAR one layer from 512 features is usual.
    A bias before a batch norm has no effect on the output, so there is none. Images smaller than 32x32 work: a pooling
    leaves a single position as it is.
    """

    def __init__(self, depths: tuple[int, ...], *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.features = _features(depths, in_channels, bias=False, ceil_mode=True)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1], num_classes))
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.head(self.features(images))
        return logits


class ImageNetVGG(nn.Module):
    """The published form, modules named as in torchvision: biases everywhere, three linear layers, dropout of 0.5."""

    def __init__(self, depths: tuple[int, ...], *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.features = _features(depths, in_channels, bias=True, ceil_mode=False)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(_WIDTHS[-1] * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, num_classes),
        )
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return logits


for _name, _depths in {"vgg13": (2, 2, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}.items():
    register(_name)(partial(VGG, _depths))
    register(_name, IMAGENET, pixels=224, num_classes=1000)(partial(ImageNetVGG, _depths))
