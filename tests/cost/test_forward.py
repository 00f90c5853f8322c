import torch
from torch import nn
from torch.nn import functional

from adagp.cost import multiply_adds


class Net(nn.Module):
    """Every kind of product: a strided grouped convolution, a linear layer used twice, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.linear = nn.Linear(16, 16, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.conv(images).flatten(2)  # (2, 6, 16)
        x = self.linear(self.linear(x))
        return functional.scaled_dot_product_attention(x, x, x)


def test_against_counting_by_hand() -> None:
    with torch.device("meta"):
        model, images = Net(), torch.zeros(2, 4, 8, 8)
    conv = 2 * 6 * 16 * (2 * 9)
    linear = 2 * (2 * 6) * 16 * 16
    attention = 2 * 2 * 6 * 6 * 16
    assert multiply_adds(model, [images], []) == (conv + linear + attention, 0)
    assert multiply_adds(model, [images], ["conv"])[1] == conv
    assert multiply_adds(model, [images], ["conv", "linear"])[1] == conv + linear


def test_leaves_no_hook_behind() -> None:
    with torch.device("meta"):
        model, images = Net(), torch.zeros(2, 4, 8, 8)
    multiply_adds(model, [images], ["conv"])
    assert not model.conv._forward_hooks
    assert not model.conv._forward_pre_hooks
