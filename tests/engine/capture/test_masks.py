"""Masks of one bit: what they give back, and gradients that stay bit for bit what they were."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adagp._engine.capture.masks import pack, unpack
from adagp.measure import peak_bytes
from adagp.sources import Sampled
from tests.sources.test_sources import attach, plain, under_plan


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 7), max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_mask_says_where_a_tensor_is_positive_in_every_layout(
    sizes: list[int], rng: object, every_second: bool, dtype: torch.dtype
) -> None:
    order = list(range(len(sizes)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    tensor = torch.randn(sizes).to(dtype).permute(order)
    if every_second and sizes:
        tensor = tensor[::2]
    found = unpack(pack(tensor))
    assert torch.equal(found, (tensor > 0).to(dtype))
    assert found.dtype == dtype
    assert pack(tensor).bits.nbytes <= tensor.numel() / 8 + 1


class Net(nn.Module):
    """Every kind of ReLU and dropout, and dropout that does nothing after a product of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.relu, self.relu_, self.drop = nn.ReLU(), nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.drop_, self.never, self.always = nn.Dropout(0.5, inplace=True), nn.Dropout(0.0), nn.Dropout(1.0)
        self.resting = nn.Dropout(0.5).eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.relu_(self.first(x)))
        x = x + self.relu(self.drop_(self.second(x)))
        x = self.resting(self.never(x * x.sigmoid())) + self.always(x)
        return self.third(x)  # type: ignore[no-any-return]


def loss(net: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(1)
    out: Tensor = net(x)
    return out.pow(2).mean()


def test_the_gradient_of_what_is_not_a_number_passes_as_through_relu() -> None:
    x = torch.tensor([float("nan"), -1.0, 0.0, 2.0], requires_grad=True)
    (true,) = torch.autograd.grad(x.relu().sum(), x)
    assert torch.equal(unpack(pack(x.relu())), true)


def test_gradients_of_the_rest_are_bit_for_bit_the_same() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(12, 6)
    true = plain(model, lambda net: loss(net, x))
    gp = attach(copy.deepcopy(model), {"third": "sampled"}, sampled=Sampled(rate=0.5, keep="rows"))
    found = under_plan(gp, lambda net: loss(net, x))
    assert all(torch.equal(found[name], true[name]) for name in true if not name.startswith("third"))


def test_autocast_and_checkpointing_keep_their_gradients() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(12, 6, requires_grad=True)

    def mixed(net: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(net, x)

    def repeated(net: nn.Module) -> Tensor:
        torch.manual_seed(1)
        out: Tensor = checkpoint(net, x, use_reentrant=False)
        return out.pow(2).mean()

    for run in (mixed, repeated):
        true = plain(model, run)
        gp = attach(copy.deepcopy(model), {"third": "sampled"}, sampled=Sampled(rate=0.5, keep="rows"))
        found = under_plan(gp, run)
        assert all(torch.equal(found[name], true[name]) for name in true if not name.startswith("third"))


@pytest.mark.parametrize("layer", [nn.Linear(32, 32), nn.Conv2d(32, 32, 1)])
def test_relu_and_dropout_take_bits(layer: nn.Module) -> None:
    """Of each 8 positions of 32 floats one row is kept, and a bit for each entry of two masks."""
    parts = [part for _ in range(8) for part in (layer, nn.ReLU(), nn.Dropout(0.1))]
    x, peaks = torch.randn(32, 256, 32), {}
    if isinstance(layer, nn.Conv2d):
        x = x.transpose(1, 2).unflatten(2, (16, 16)).contiguous()
    for keep in ("input", "rows"):
        model = nn.Sequential(*(copy.deepcopy(part) for part in parts))
        layers = {str(index): "sampled" for index in range(0, 24, 3)}
        gp = attach(model, layers, sampled=Sampled(rate=1 / 8, keep=keep))
        gp.step(lambda model=model: model(x).square().mean())
        peaks[keep] = peak_bytes(lambda gp=gp, model=model: gp.step(lambda: model(x).square().mean()), x.device)
    held = 8 * 3 * x.nbytes  # an input, an output of ReLU and a mask for each layer
    assert peaks["input"] > held
    assert peaks["rows"] < 8 * (1 / 8 + 2 / 32) * x.nbytes + 8 * x.nbytes
