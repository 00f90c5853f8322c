import subprocess
import sys

import pytest
import torch

from adagp import models


def test_names_are_sorted_and_cifar_is_the_default_form() -> None:
    assert models.names() == sorted(models.names())
    assert models.forms("resnet20") == ["cifar"]
    assert models.forms("resnet50") == ["cifar", "imagenet"]
    with torch.device("meta"):
        default, named = models.build("vgg13"), models.build("vgg13", "cifar", num_classes=10, in_channels=3)
        imagenet = models.build("vgg13", form="imagenet")
    assert default.state_dict().keys() == named.state_dict().keys() != imagenet.state_dict().keys()


def test_sizes_tell_what_can_be_chosen() -> None:
    assert models.sizes("resnet50") == {"num_classes": 10, "in_channels": 3}
    assert models.sizes("resnet50", "imagenet") == {"num_classes": 1000, "in_channels": 3}
    models.sizes("resnet50")["num_classes"] = 5
    assert models.sizes("resnet50")["num_classes"] == 10


def test_example_inputs_fit_the_form() -> None:
    (images,) = models.example_inputs("resnet50", batch=2, in_channels=1)
    assert images.shape == (2, 1, 32, 32)
    (images,) = models.example_inputs("resnet50", "imagenet")
    assert images.shape == (1, 3, 224, 224)


def test_networks_of_other_tasks_have_their_own_sizes() -> None:
    assert models.forms("transformer") == ["multi30k"]
    assert models.sizes("transformer")["source_vocabulary"] == 10_000
    source, target = models.example_inputs("transformer", batch=2)
    assert source.shape == target.shape == (2, 16)
    assert source.dtype == torch.long
    with pytest.raises(ValueError, match="num_classes: transformer has no such size; its sizes: source_vocabulary, "):
        models.build("transformer", num_classes=10)
    assert models.forms("yolo_v3") == ["voc"]
    assert models.sizes("yolo_v3") == {"num_classes": 20, "in_channels": 3}


def test_unknown_name_lists_the_known_ones() -> None:
    for function in (models.build, models.forms, models.sizes, models.example_inputs):
        with pytest.raises(ValueError, match=r"name: .*'resnet21'.*cnn, cnn2, .*resnet14, .*resnet20, .*vgg13"):
            function("resnet21")


def test_unknown_form_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="form: resnet20 has no form 'imagenet'; its forms: cifar"):
        models.build("resnet20", "imagenet")


def test_unknown_size_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="classes: cnn has no such size; its sizes: num_classes, in_channels"):
        models.build("cnn", classes=10)


@pytest.mark.parametrize("argument", ["num_classes", "in_channels"])
def test_sizes_below_one_are_refused_by_name(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}: must be at least 1, got 0"):
        models.build("cnn", **{argument: 0})


def test_a_name_and_form_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'cnn' exists already in the form 'cifar'"):
        models.register("cnn")(models.cnn.SmallCNN)


def test_networks_are_told_apart_by_their_task() -> None:
    assert models.names("translation") == ["transformer"]
    assert models.names("detection") == ["yolo_v3"]
    assert models.names("next-token") == ["gpt"]
    assert set(models.names("classification")) == set(models.names()) - {"transformer", "yolo_v3", "gpt"}
    assert models.task("vgg13") == "classification"
    with pytest.raises(ValueError, match="no model is called 'vgg'"):
        models.task("vgg")


def test_an_outline_is_not_initialised_by_the_compiler() -> None:
    """Drawing numbers on the meta device would import torch's compiler first: seconds, for nothing."""
    program = """
import sys, torch
from adagp import models
with torch.device("meta"):
    for name in ("transformer", "densenet121", "inception_v3", "yolo_v3", "mobilenet_v2"):
        assert all(parameter.is_meta for parameter in models.build(name).parameters())
assert "torch._dynamo" not in sys.modules
assert models.build("cnn2").state_dict()["features.0.weight"].std() > 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)
