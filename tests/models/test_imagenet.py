"""The ImageNet forms are the published networks: as many parameters, the same names and shapes, as much work."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adagp import models
from tests.models import published


@functools.cache
def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return models.build(name, "imagenet").eval()


def test_every_imagenet_form_is_checked() -> None:
    there = {name for name in models.names() if "imagenet" in models.forms(name)}
    assert there == set(published.PARAMETERS) == set(published.STATE_DICTS) == set(published.GIGA_MULTIPLY_ADDS)


@pytest.mark.parametrize("name", published.PARAMETERS)
def test_parameters(name: str) -> None:
    assert sum(parameter.numel() for parameter in on_meta(name).parameters()) == published.PARAMETERS[name]


@pytest.mark.parametrize("name", published.STATE_DICTS)
def test_state_dict_has_the_published_names_and_shapes(name: str) -> None:
    ours = {key: tuple(value.shape) for key, value in on_meta(name).state_dict().items()}
    assert ours == published.STATE_DICTS[name]


@pytest.mark.parametrize("name", published.GIGA_MULTIPLY_ADDS)
def test_multiply_adds(name: str) -> None:
    """Strides and paddings have no parameters: a wrong one shows in the work done."""
    model, norm_outputs = on_meta(name), []
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: norm_outputs.append(output.numel()))
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        logits = model(*models.example_inputs(name, "imagenet"))
    for hook in hooks:
        hook.remove()
    assert logits.shape == (1, 1000)
    work = counter.get_total_flops() / 2 + (2 * sum(norm_outputs) if name == "inception_v4" else 0)
    assert work / 1e9 == pytest.approx(published.GIGA_MULTIPLY_ADDS[name], abs=0.0051)


@pytest.mark.parametrize("name", ["vgg13", "resnet50", "densenet121", "mobilenet_v2", "inception_v3", "inception_v4"])
def test_other_classes_and_channels(name: str) -> None:
    with torch.device("meta"):
        sizes = {"num_classes": 7, "in_channels": 1}
        model = models.build(name, "imagenet", **sizes).eval()
        assert model(*models.example_inputs(name, "imagenet", batch=2, **sizes)).shape == (2, 7)
