"""Coarse batches: smaller samples, and models that can or cannot take them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import AdaGP, coarse, models, schedules
from tests.nets import sgd


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3), st.integers(2, 12), st.integers(2, 12), st.sampled_from([0.25, 0.5, 0.625, 0.75, 1.0]))
def test_images_keep_their_mean_where_areas_are_equal(channels: int, rows: int, columns: int, scale: float) -> None:
    batch = torch.randn(2, channels, 8 * rows, 8 * columns)
    smaller = coarse.images(batch, scale)
    assert smaller.shape == (2, channels, round(8 * rows * scale), round(8 * columns * scale))
    if scale in (0.25, 0.5):
        assert torch.allclose(smaller.mean((2, 3)), batch.mean((2, 3)), atol=1e-5)
        step = round(1 / scale)
        assert torch.allclose(smaller[0, 0, 0, 0], batch[0, 0, :step, :step].mean(), atol=1e-6)


def test_full_size_is_the_batch_itself() -> None:
    batch = torch.randn(2, 3, 8, 8)
    assert coarse.images(batch, 1) is batch
    assert coarse.images(batch, 0.9, multiple=8) is batch


def test_memory_order_and_bytes_are_kept() -> None:
    batch = torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last)
    for scale in (0.5, 0.75):
        assert coarse.images(batch, scale).is_contiguous(memory_format=torch.channels_last)
    pixels = torch.tensor([[0, 1], [255, 254]], dtype=torch.uint8).expand(1, 3, 2, 2)
    assert coarse.images(pixels, 0.5).tolist() == [[[[128]]] * 3]
    assert coarse.images(pixels, 0.5).dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_means_of_short_floats_are_rounded_once(dtype: torch.dtype) -> None:
    batch = torch.randn(2, 3, 16, 16).to(dtype)
    assert torch.equal(coarse.images(batch, 0.5), coarse.images(batch.float(), 0.5).to(dtype))


@pytest.mark.parametrize(
    ("pixels", "scale", "multiple", "found"),
    [(416, 0.5, 32, 192), (96, 0.5, 32, 64), (7, 0.1, 1, 1), (56, 0.9, 32, 32), (20, 0.5, 32, 20), (40, 1, 32, 40)],
)
def test_sizes_are_multiples_and_never_grow(pixels: int, scale: float, multiple: int, found: int) -> None:
    assert coarse.size(pixels, scale, multiple) == found
    assert coarse.images(torch.zeros(1, 3, pixels, pixels), scale, multiple).shape[-1] == found
    assert coarse.masks(torch.zeros(1, pixels, pixels), scale, multiple).shape[-1] == found


@pytest.mark.parametrize("multiple", [0, -4])
def test_a_multiple_that_is_none_is_refused(multiple: int) -> None:
    with pytest.raises(ValueError, match=rf"multiple = {multiple}: must be at least 1"):
        coarse.images(torch.zeros(1, 3, 8, 8), 0.5, multiple)


def test_boxes_and_masks_follow_their_image() -> None:
    corners = torch.tensor([[4.0, 8.0, 12.0, 16.0]])
    assert coarse.boxes(corners, (32, 16), (16, 8)).tolist() == [[2.0, 4.0, 6.0, 8.0]]
    assert coarse.boxes(corners, (32, 16), (8, 8)).tolist() == [[2.0, 2.0, 6.0, 4.0]]
    assert coarse.boxes(corners.long(), (32, 16), (16, 8)).tolist() == [[2.0, 4.0, 6.0, 8.0]], "whole numbers too"
    labels = torch.arange(16).reshape(1, 4, 4)
    assert coarse.masks(labels, 0.5).tolist() == [[[0, 2], [8, 10]]]
    assert coarse.masks(labels, 1).tolist() == labels.tolist()


def test_tokens_are_cut() -> None:
    batch = torch.arange(20).reshape(2, 10)
    assert coarse.tokens(batch, 0.5).tolist() == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


@pytest.mark.parametrize("scale", [0, -0.5, 1.5, float("nan"), "half"])
def test_a_scale_that_is_none_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match=r"scale = .*above 0 and at most 1"):
        coarse.images(torch.zeros(1, 3, 4, 4), scale)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 4\): images have channels"):
        coarse.images(torch.zeros(4, 4), 0.5)


@pytest.mark.parametrize("name", ["resnet20", "vgg13", "mobilenet_v2", "densenet121", "resnet50"])
def test_our_networks_take_half_the_size(name: str) -> None:
    model = models.build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    coarse.check(model, torch.zeros(1, 3, 32, 32), [1.0, 0.75, 0.5])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training


class Patches(nn.Module):
    """A ViT with an embedding for each patch of an 8 x 8 image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 2, stride=2)
        self.embedding = nn.Parameter(torch.zeros(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.patches(x).flatten(2).transpose(1, 2) + self.embedding).mean((1, 2))


class OneSize(Patches):
    """As timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 8, f"Input height ({x.shape[-1]}) doesn't match model (8)."
        return super().forward(x)


class Skip(nn.Module):
    """A U-Net of one level: halves the image and doubles it again."""

    def forward(self, x: Tensor) -> Tensor:
        down = nn.functional.max_pool2d(x, 2)
        return torch.cat([x, nn.functional.interpolate(down, scale_factor=2)], 1).mean((2, 3))


class Viewed(nn.Module):
    """A classifier behind a view of fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.reshape(-1, 192))


@pytest.mark.parametrize("inside", ["", "1"])
@pytest.mark.parametrize(
    ("model", "scale", "message"),
    [
        (Patches(), 0.5, r"{where} fails .*position embedding: interpolate it"),
        (OneSize(), 0.5, r"{where} fails \(Input height \(4\) .*position embedding: interpolate it"),
        (Skip(), 0.625, r"{where} fails .*use sizes that are multiples of the model's total stride"),
        (Viewed(), 0.5, r"{where} fails .*put nn.AdaptiveAvgPool2d\(1\) before the classifier"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), 0.5, r"1' \(Linear\) fails .*put nn.AdaptiveAvgPool2d"),
        (nn.Sequential(nn.Conv2d(3, 2, 5)), 0.5, r"0' \(Conv2d\) fails .*too small: use a larger scale"),
    ],
    ids=["patches", "assertion", "skip", "view", "classifier", "maps"],
)
def test_a_model_that_cannot_is_refused_by_name(model: nn.Module, scale: float, message: str, inside: str) -> None:
    where = f"module '1' \\({type(model).__name__}\\)" if inside else f"{type(model).__name__} itself"
    whole = nn.Sequential(nn.Identity(), model) if inside else model
    pixels = round(8 * scale)
    start = f"scale {scale}: the model cannot take samples of 3x{pixels}x{pixels}; "
    with pytest.raises(ValueError, match=start + ".*" + message.replace("{where}", where)):
        coarse.check(whole, torch.zeros(2, 3, 8, 8), [scale, 1.0])
    coarse.check(whole, torch.zeros(2, 3, 8, 8), [1.0])
    assert not any(module._forward_hooks for module in whole.modules())


class Reads(nn.Module):
    """Makes a tensor on the CPU, reads a value, and draws a number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        ramp = torch.linspace(0, 1, x.shape[-1])
        return self.head((x * ramp).mean((2, 3)) + min(x.max().item(), 1.0) * torch.rand(3))


def test_a_model_that_runs_is_never_refused_and_draws_nothing() -> None:
    model = Reads()
    state = torch.get_rng_state()
    coarse.check(model, torch.zeros(2, 3, 8, 8), [0.5])
    assert torch.equal(torch.get_rng_state(), state)
    gp = AdaGP(model, sgd(model), schedules.progressive(10), None)
    coarse.check(model, torch.zeros(2, 3, 8, 8), gp.schedule.scales)


def test_a_compiled_model_is_checked_without_compiling() -> None:
    compiled = torch.compile(Patches(), backend=lambda graph, inputs: pytest.fail("compiled"))
    with pytest.raises(ValueError, match="position embedding"):
        coarse.check(compiled, torch.zeros(2, 3, 8, 8), [0.5])


def test_an_example_that_does_not_fit_says_so() -> None:
    with pytest.raises(ValueError, match=r"the example does not fit the model at full size, 1x8x8: .*'patches'"):
        coarse.check(Patches(), torch.zeros(2, 1, 8, 8), [0.5])
