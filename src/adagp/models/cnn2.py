"""The 2-layer CNN of the gradient-approximation paper, after Krizhevsky's CIFAR-10 nets."""

from torch import Tensor, nn

from adagp.models.registry import register


@register("cnn2")
class TwoLayerCNN(nn.Module):
    """Two 5x5 convolutions with 64 channels, two hidden linear layers (384, 192) and the classifier.

    The paper states no sizes; these are the usual ones of that net. Batch norm replaces local response normalisation,
    as in the paper. The pooling before the linear layers gives 8x8 for images of any size.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 64, 5, padding=2, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(64, 64, 5, padding=2, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.AdaptiveMaxPool2d(8),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 384),
            nn.ReLU(inplace=True),
            nn.Linear(384, 192),
            nn.ReLU(inplace=True),
            nn.Linear(192, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
