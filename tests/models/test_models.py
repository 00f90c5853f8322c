import pytest
import torch
from torch import nn

from adagp import models


# Counted from the papers' tables, not read off the code.
def _resnet_parameters(blocks: int) -> int:
    total = 3 * 16 * 9 + 2 * 16 + 64 * 10 + 10
    before = 16
    for width in (16, 32, 64):
        total += before * width * 9 + (2 * blocks - 1) * width * width * 9 + 2 * blocks * 2 * width
        before = width
    return total


SMALL = ["cnn", "cnn2", "resnet8", "resnet14", "resnet20", "vgg13", "mobilenet_v2"]
LARGE = ["vgg16", "resnet50", "densenet121", "inception_v3", "inception_v4"]  # of each family one


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cnn", (3 * 16 * 9 + 16) + (16 * 32 * 9 + 32) + (32 * 64 * 9 + 64) + (256 * 128 + 128) + (128 * 10 + 10)),
        ("resnet8", _resnet_parameters(1)),
        ("resnet14", _resnet_parameters(2)),
        ("resnet20", _resnet_parameters(3)),
        ("vgg13", 9_416_010 - 2 * (64 + 128 + 256 + 512 + 512)),  # usual count, less the biases batch norm makes void
        ("vgg19", 20_040_522 - (2 * 64 + 2 * 128 + 4 * (256 + 512 + 512))),
        ("vgg16", 14_728_266 - (2 * 64 + 2 * 128 + 3 * (256 + 512 + 512))),
        # The published ImageNet network with ten classes and a 3x3 stem in place of 7x7.
        ("resnet50", 25_557_032 - 990 * 2049 - 64 * 3 * (49 - 9)),
        ("resnet101", 44_549_160 - 990 * 2049 - 64 * 3 * (49 - 9)),
        ("resnet152", 60_192_808 - 990 * 2049 - 64 * 3 * (49 - 9)),
        # The same, and without the norm after the stem.
        ("densenet121", 7_978_856 - 990 * 1025 - 64 * 3 * (49 - 9) - 2 * 64),
        ("densenet161", 28_681_000 - 990 * 2209 - 96 * 3 * (49 - 9) - 2 * 96),
        ("densenet169", 14_149_480 - 990 * 1665 - 64 * 3 * (49 - 9) - 2 * 64),
        ("densenet201", 20_013_928 - 990 * 1921 - 64 * 3 * (49 - 9) - 2 * 64),
        ("inception_v3", 23_834_568 - 990 * 2049),  # the published count without the auxiliary head
        ("inception_v4", 42_679_816 - 990 * 1537),
        (
            "cnn2",
            (3 * 64 * 25 + 128) + (64 * 64 * 25 + 128) + (4096 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10),
        ),
        ("mobilenet_v2", 2_236_682),
    ],
)
def test_parameter_counts(name: str, expected: int) -> None:
    with torch.device("meta"):
        assert _parameters(models.build(name)) == expected


def test_published_sizes() -> None:
    assert _parameters(models.build("resnet20")) == pytest.approx(0.27e6, rel=0.02)  # He et al., table 6
    assert 50_000 <= _parameters(models.build("cnn", in_channels=1)) <= 100_000


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("channels", "size", "classes"), [(1, 8, 10), (1, 28, 10), (3, 32, 10), (3, 32, 7)])
def test_shapes(name: str, channels: int, size: int, classes: int) -> None:
    model = models.build(name, num_classes=classes, in_channels=channels)
    logits = model(torch.randn(2, channels, size, size))
    assert logits.shape == (2, classes)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", LARGE)
def test_shapes_of_large_networks(name: str) -> None:
    with torch.device("meta"):
        model = models.build(name, num_classes=7, in_channels=1)
        for size in (8, 36):
            assert model(torch.randn(2, 1, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", SMALL)
def test_one_sgd_step_lowers_the_loss_and_reaches_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = nn.functional.cross_entropy(model(images), labels)
    before.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    optimizer.step()
    after = nn.functional.cross_entropy(model(images), labels)
    assert after.item() < before.item()


@pytest.mark.parametrize("name", ["cnn", "resnet14", "vgg13", "mobilenet_v2"])
def test_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(models.build(name).state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(1), weights(2), strict=True))


def test_resnet_shortcut_is_option_a() -> None:
    block = models.resnet_cifar.BasicBlock(16, 32, 2).eval()
    nn.init.zeros_(
        block.conv2.weight
    )  # the residual branch gives 0 (eval-mode norm of 0), so the shortcut is the output
    x = torch.rand(1, 16, 8, 8)
    y = block(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


def test_mobilenet_has_depthwise_layers() -> None:
    model = models.build("mobilenet_v2")
    depthwise = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.groups == m.in_channels > 1]
    assert len(depthwise) == 17


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "inception_v3", "inception_v4", "mobilenet_v2"])
def test_cifar_forms_keep_4x4_positions(name: str) -> None:
    """What the mean pooling before the classifier sees of a 32x32 image."""
    with torch.device("meta"):
        model = models.build(name)
        seen = []
        pool = next(module for module in model.modules() if isinstance(module, nn.AdaptiveAvgPool2d))
        pool.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[2:]))
        model(*models.example_inputs(name, batch=2))
    assert seen == [(4, 4)]
