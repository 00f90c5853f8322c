"""Every network of the zoo, by the form it trains in: a BP, a GP and a mixed batch, on a few tiny samples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, models, schedules
from adagp.layers.coverage import find_layers
from adagp.measure import peak_bytes
from adagp.models import yolo
from adagp.models.gpt import GPT
from adagp.models.inception_v3 import classification_loss
from adagp.models.transformer import PAD, Transformer

Loss = Callable[[nn.Module], Tensor]


def classify(size: int) -> Loss:
    images, labels = torch.randn(2, 3, size, size), torch.tensor([0, 1])
    return lambda model: classification_loss(model(images), labels)


def translate() -> Loss:
    source = torch.tensor([[3, 4, 5, 2, PAD], [6, 7, 8, 9, 2]])
    target = torch.tensor([[1, 5, 4, 3, 2], [1, 9, 8, 2, PAD]])

    def loss(model: nn.Module) -> Tensor:
        logits = model(source, target[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)

    return loss


def continue_text() -> Loss:
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3]])
    return lambda model: nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def detect() -> Loss:
    image = torch.randn(1, 3, 64, 64)
    targets = torch.tensor([[0, 7, 0.4, 0.6, 0.5, 0.3], [0, 11, 0.8, 0.2, 0.1, 0.1]])
    return lambda model: yolo.loss(model(image), targets)


def case(name: str) -> tuple[nn.Module, Loss]:
    """A network, and its loss on its own tiny data."""
    torch.manual_seed(0)
    if name == "transformer":
        # Without dropout, so that a lower loss is not luck.
        return Transformer(source_vocabulary=12, target_vocabulary=12, width=32, hidden=32, dropout=0.0), translate()
    if name == "gpt":
        return GPT(vocabulary=12, context=5, layers=2, width=32, heads=2, dropout=0.0), continue_text()
    if name == "yolo_v3":
        return models.build(name), detect()
    # Two by two positions are left in the end: with fewer, a norm over two values could only tell which one is larger.
    return models.build(name), classify(32 if name.startswith("vgg") else 16)


def learning_rate(model: nn.Module, loss_of: Loss) -> float:
    """One at which a step of gradient descent lowers the loss by a twentieth, were it a plane."""
    loss = loss_of(model)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return 0.05 * loss.item() / sum(gradient.square().sum().item() for gradient in gradients)


DEEPER = ("densenet161", "densenet169", "densenet201", "resnet101", "resnet152", "vgg16", "vgg19")
"""Built from the same blocks as a network that every test run has."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in DEEPER else []) for name in models.names()]
)
def test_bp_gp_and_mixed_batches(name: str) -> None:
    model, loss_of = case(name)
    first_half = schedules.layer_names(model)
    first_half = first_half[: len(first_half) // 2]
    plans = (
        Plan(Phase.BP, "backprop"),
        Plan(Phase.GP, "predicted"),
        Plan(Phase.BP, "backprop", dict.fromkeys(first_half, "predicted")),
    )
    schedule = schedules.from_function(lambda step: plans[step], ["backprop", "predicted"])
    # The default predictor would predict nothing until it has shown that it can.
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate(model, loss_of))
    gp = AdaGP(model, optimizer, schedule, predictor="paper")
    layers = sum(row.covered for row in gp.coverage().rows)
    losses: list[float] = []
    graphs: list[bool] = []

    def closure() -> Tensor:
        loss = loss_of(model)
        graphs.append(loss.requires_grad)
        return loss

    def step() -> None:
        loss = gp.step(closure)
        assert loss is not None
        losses.append(loss.item())

    weight_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    for plan in plans:
        peak = peak_bytes(step, torch.device("cpu"))
        # Gradients and what computes them; the default predictor's memories are not there.
        assert peak < 6 * weight_bytes + 200_000_000, f"{plan.phase}: {peak / 1e6:.0f} MB"
    assert gp.counts() == {"backprop": 2 * layers - len(first_half), "predicted": layers + len(first_half)}
    assert graphs == [True, False, True]
    assert losses[1] < losses[0], "the true gradient of the BP batch lowers the loss"
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "form"), [(name, form) for name in models.names() for form in models.forms(name)])
def test_every_convolution_and_linear_layer_is_covered(name: str, form: str) -> None:
    with torch.device("meta"):
        model = models.build(name, form)
    layers, _ = find_layers(model, model.parameters())
    expected = [n for n, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert [layer.name for layer in layers] == expected
    biases = [module.bias for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert [layer.bias is None for layer in layers] == [bias is None for bias in biases]


@pytest.mark.slow
def test_inception_v3_trains_its_auxiliary_head() -> None:
    """The ImageNet form returns two logits; its head gets true and predicted gradients like any other layer."""
    torch.manual_seed(0)
    model = models.build("inception_v3", "imagenet", num_classes=3)
    images, labels = torch.randn(1, 3, 299, 299).expand(2, -1, -1, -1) + torch.randn(2, 3, 1, 1), torch.tensor([0, 1])
    plans = (Plan(Phase.BP, "backprop"), Plan(Phase.GP, "predicted"))
    gp = AdaGP(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        schedules.from_function(lambda step: plans[step % 2]),
        predictor="paper",
    )
    before = model.AuxLogits.fc.weight.detach().clone()
    gp.step(lambda: classification_loss(model(images), labels))
    assert not torch.equal(model.AuxLogits.fc.weight, before)
    gp.step(lambda: classification_loss(model(images), labels))
    layers = len(schedules.layer_names(model))
    assert gp.counts() == {"backprop": layers, "predicted": layers}
