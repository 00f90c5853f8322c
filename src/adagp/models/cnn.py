"""A small CNN for demonstrations: an epoch takes seconds on a CPU."""

from torch import Tensor, nn

from adagp.models.registry import register


@register("cnn")
class SmallCNN(nn.Module):
    """Three convolutions and two linear layers, all with bias and without normalisation.

    Every weight and bias belongs to a layer whose gradient adagp can supply, so a GP batch trains the whole model.
    ReLUs are in place on purpose, as in users' models. Images may have any size from 8x8: the last pooling gives 2x2.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveMaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 2 * 2, 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, num_classes) logits."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
