"""VGG-13 for 32x32 images, after Simonyan and Zisserman (2015), with batch normalisation."""

from torch import Tensor, nn

from adagp.models.initialisation import he_normal
from adagp.models.registry import register

_STAGES = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512))


@register("vgg13")
class VGG13(nn.Module):
    """Ten 3x3 convolutions in five stages, and a single linear classifier.

    The paper's three large linear layers are for 224x224 images; on CIFAR one layer from 512 features is usual, and
    9.4 M parameters remain. Images smaller than 32x32 work: a pooling leaves a single position as it is.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = in_channels
        for stage in _STAGES:
            for out_width in stage:
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
