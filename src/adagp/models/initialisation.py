"""One initialisation for all convolutional networks of the zoo."""

from torch import nn


def he_normal(model: nn.Module) -> None:
    """Draw convolutions as He et al. (2015) do, by fan-out, and linear layers small and normal.

    Fan-out keeps the variance of the *backward* signal steady through the depth, as usual for ResNets; norm
    layers start as the identity, which is torch's default.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
