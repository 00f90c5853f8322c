import torch
from torch import nn

from adagp.advice.layers import layer_times
from adagp.advice.subject import build_subject
from adagp.layers.coverage import find_layers
from adagp.sources import TopK
from tests.nets import batches, build, loss_of, sgd


class Counting:
    """A clock that counts how often it is asked: every measured piece of work takes 1."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return float(self.asked)


def test_every_layer_is_measured_in_its_three_parts() -> None:
    model = build()
    subject = build_subject(model, sgd(model), lambda batch: loss_of(model, *batch), batches(1), lambda: 0.0)
    layers = find_layers(model, model.parameters())[0]
    found = layer_times(subject, layers, {"topk": TopK()}, Counting(), lambda: True)
    assert [one.name for one in found] == ["0", "3", "7", "9"]
    assert [one.kind for one in found] == ["Conv2d", "Conv2d", "Linear", "Linear"]
    assert all((one.forward, one.weight_gradient, one.sources) == (1, 1, {"topk": 1}) for one in found)
    assert [one.input_gradient for one in found] == [0, 1, 1, 1], "nothing before the first layer needs a gradient"
    assert all(part.grad is None for part in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_layers_with_other_inputs_are_left_out() -> None:
    model = nn.Bilinear(2, 2, 2)
    both = nn.ModuleDict({"two": model, "one": nn.Linear(2, 2)})

    def closure() -> torch.Tensor:
        return both["one"](model(torch.ones(3, 2), torch.ones(3, 2))).sum()  # type: ignore[no-any-return]

    subject = build_subject(both, sgd(both), closure, None, lambda: 0.0)
    layers = find_layers(both, both.parameters())[0]
    assert [one.name for one in layer_times(subject, layers, {}, Counting(), lambda: True)] == ["one"]
