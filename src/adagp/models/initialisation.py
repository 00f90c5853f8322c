"""The initialisation of all convolutional networks here."""

from torch import nn


def he_normal(model: nn.Module) -> None:
    """Initialise convolutions as He et al. (2015), by fan-out, and linear layers from a narrow normal distribution.

    Fan-out preserves the variance of the *backward* signal through the depth, as usual for ResNets. Norm layers start
    as the identity, torch's default.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
