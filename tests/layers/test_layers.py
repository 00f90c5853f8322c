from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import AdaGP, layers, schedules
from adagp.layers import Layer
from adagp.layers.coverage import find_layers, present_coverage
from adagp.layers.rows import Rows


def only_layer(module: nn.Module) -> Layer:
    return find_layers(module, module.parameters())[0][0]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    dims = draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    groups = draw(st.sampled_from([1, 2, 4]))
    c_in, c_out = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    cls: Any = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    module = cls(
        c_in, c_out, kernel, stride=stride, dilation=dilation, groups=groups, padding=1, bias=draw(st.booleans())
    )
    if dims > 1 and draw(st.booleans()):
        module = module.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    return module, torch.randn(2, c_in, *[draw(st.integers(5, 7)) for _ in range(dims)])


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_a_row_holds_all_weights_of_one_output_channel(case: tuple[nn.Module, Tensor]) -> None:
    """Brute force: the gradient of one output channel alone touches exactly its own row."""
    module, x = case
    layer = only_layer(module)
    for channel in range(layer.out):
        module.zero_grad()
        module(x)[:, channel].sum().backward()
        rows = layer.gradient()
        assert rows is not None
        others = [row for row in range(layer.out) if row != channel]
        assert rows.weight[channel].abs().max() > 0
        assert not others or rows.weight[others].abs().max() == 0
        assert rows.weight.shape == (layer.out, layer.fan_in)


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_assigning_the_rows_of_a_gradient_restores_it_exactly(case: tuple[nn.Module, Tensor]) -> None:
    module, x = case
    module(x).square().sum().backward()
    before = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    layer = only_layer(module)
    layer.assign(layer.gradient())
    for parameter, expected in zip(module.parameters(), before, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected)
        assert parameter.grad.stride() == parameter.stride()


@settings(max_examples=40, deadline=None)
@given(convolutions())
def test_reorganised_output_is_the_batch_mean_by_channel(case: tuple[nn.Module, Tensor]) -> None:
    module, x = case
    layer = only_layer(module)
    output = module(x)
    seen = layer.reorganise(output)
    assert seen.shape[:2] == (layer.out, 1)
    assert torch.allclose(seen.flatten(1), output.mean(0).flatten(1), atol=1e-6)


def test_channels_last_output_is_reorganised_to_the_same_values() -> None:
    module = nn.Conv2d(3, 5, 3)
    layer = only_layer(module)
    output = module(torch.randn(4, 3, 9, 8))
    seen = layer.reorganise(output.to(memory_format=torch.channels_last))
    assert torch.allclose(seen, layer.reorganise(output), atol=1e-6)


def test_channels_last_weight_keeps_its_layout_in_the_gradient() -> None:
    module = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    layer = only_layer(module)
    module(torch.randn(2, 4, 8, 8)).sum().backward()
    true = module.weight.grad
    assert true is not None
    expected = true.clone()
    layer.assign(layer.gradient())
    assert module.weight.grad is not None
    assert torch.equal(module.weight.grad, expected)
    assert module.weight.grad.stride() == module.weight.stride()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("inputs", "groups", "kernel"), [(4, 1, 3), (4, 1, 1), (6, 6, 3), (1, 1, 3)])
def test_neither_layout_is_copied_on_its_way_to_rows_and_back(
    layout: torch.memory_format, inputs: int, groups: int, kernel: int
) -> None:
    module = nn.Conv2d(inputs, 6, kernel, groups=groups).to(memory_format=layout)
    layer = only_layer(module)
    module.weight.grad = torch.randn(module.weight.shape).to(memory_format=layout)
    rows = layer.gradient()
    assert rows is not None
    assert rows.weight.data_ptr() == module.weight.grad.data_ptr()
    made = torch.randn(6, layer.fan_in)
    layer.assign(Rows(made, None))
    assert module.weight.grad.data_ptr() == made.data_ptr()
    assert module.weight.grad.stride() == module.weight.stride()


def test_a_kind_derived_from_convolution_is_kept_for_channels_last_weights() -> None:
    class Own(layers.Convolution):
        pass

    class Mine(nn.Conv2d):
        pass

    layers.register(Mine)(Own)
    try:
        assert isinstance(only_layer(Mine(4, 6, 3).to(memory_format=torch.channels_last)).kind, Own)
    finally:
        layers.unregister(Mine)


def test_a_bias_that_backward_does_not_reach_has_gradient_zero() -> None:
    module = nn.Linear(3, 4)
    layer = only_layer(module)
    module.weight.square().sum().backward()
    rows = layer.gradient()
    assert rows is not None
    assert rows.bias is not None
    assert torch.equal(rows.bias, torch.zeros(4, 1))


@pytest.mark.parametrize("shape", [(7,), (4, 7), (4, 3, 7), (2, 3, 5, 7)])
def test_linear_takes_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    module = nn.Linear(7, 5)
    output = module(torch.randn(shape))
    seen = only_layer(module).reorganise(output)
    mean = output.mean(0) if output.dim() > 1 else output
    assert seen.shape == (5, 1, 1, max(1, mean.numel() // 5))
    assert torch.allclose(seen[:, 0, 0], mean.reshape(-1, 5).t())


def test_unbatched_convolution_output() -> None:
    module = nn.Conv2d(3, 4, 3)
    assert only_layer(module).reorganise(module(torch.randn(3, 8, 8))).shape == (4, 1, 6, 6)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_registered_type_is_covered_and_a_wrong_reorganisation_named() -> None:
    @layers.register(Scaled)
    class Diagonal(layers.LayerKind):
        def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
            return weight_like[:, None]

        def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
            return rows[:, 0]

        def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
            return output.mean(0)

    try:
        layer = only_layer(nn.Sequential(Scaled()))
        assert (layer.out, layer.fan_in) == (6, 1)
        with pytest.raises(ValueError, match=r"layer '0': Diagonal.reorganise gave shape \(6,\)"):
            layer.reorganise(torch.randn(3, 6))
    finally:
        layers.unregister(Scaled)
    assert not find_layers(nn.Sequential(Scaled()), [])[0]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2), nn.Linear(2, 2))


def test_layers_are_chosen_by_name_and_by_class() -> None:
    net = model()
    names = lambda **kw: [layer.name for layer in find_layers(net, net.parameters(), **kw)[0]]  # noqa: E731
    assert names() == ["0", "3", "4"]
    assert names(include="Conv") == ["0"]
    assert names(include="^[34]$") == ["3", "4"]
    assert names(exclude="Linear") == ["0"]
    with pytest.raises(ValueError, match=r"include='nothing' matches no layer; the model's layers are: 0, 3, 4"):
        names(include="nothing")
    with pytest.raises(ValueError, match="exclude='nothing' matches no layer"):
        names(exclude="nothing")
    with pytest.raises(ValueError, match=r"include='\[' is not a regular expression"):
        names(include="[")
    for text in ("a{99999999999}", "(" * 5000 + ")" * 5000):  # no error of the syntax to Python
        with pytest.raises(ValueError, match=r"(?s)exclude='.* is not a regular expression"):
            names(exclude=text)


def test_coverage_gives_the_reason_for_every_module_left_out() -> None:
    net = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "norm": nn.BatchNorm2d(4),
            "frozen": nn.Linear(4, 4),
            "outside": nn.Linear(4, 4),
            "table": nn.Embedding(9, 4),
            "tied": nn.Linear(4, 9, bias=False),
            "attention": nn.MultiheadAttention(4, 2),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        }
    )
    net["frozen"].weight.requires_grad_(False)
    net["tied"].weight = net["table"].weight
    optimized = [p for name, p in net.named_parameters() if not name.startswith("outside")]
    found, reasons = find_layers(net, optimized)
    parts = ["attention.in_proj", "attention.out_proj"]
    assert [layer.name for layer in found] == ["conv", "frozen", "tied", *parts]
    coverage = present_coverage(net, optimized, found, reasons)
    why = {row.layer: row.reason for row in coverage.rows}
    assert why["conv"] == ""
    assert "no rows for type BatchNorm2d" in why["norm"]
    assert "frozen" in why["frozen"]
    assert "not in the optimizer" in why["outside"]
    assert why["tied"] == ""
    assert "tied to tied.weight, which supplies the one gradient of both" in why["table"]
    assert [why[name] for name in parts] == ["", ""]
    assert "parametrization" in why["normed"]
    total = sum(p.numel() for p in net.parameters())
    assert sum(row.parameters for row in coverage.rows) == total
    trained = sum(p.numel() for p in optimized if p.requires_grad)
    assert sum(row.trained for row in coverage.rows) == trained
    assert coverage.share == pytest.approx((112 + 36 + 4 * 4 * 4 + 4 * 4) / trained)
    assert "covered" in str(coverage)


def test_lazy_layers_are_refused_until_they_have_a_shape() -> None:
    net = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ValueError, match="lazy"):
        find_layers(net, net.parameters())


def test_a_frozen_bias_gets_no_gradient() -> None:
    module = nn.Linear(3, 2)
    layer = only_layer(module)
    rows = Rows(torch.ones(2, 3), torch.ones(2, 1))
    layer.assign(rows)
    assert module.bias.grad is not None
    module.bias.requires_grad_(False)
    layer.assign(rows)
    assert module.bias.grad is None
    assert module.weight.grad is not None


def test_the_share_counts_what_is_trained_and_supplied() -> None:
    net = nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10), nn.Linear(10, 10))
    net[2].weight.requires_grad_(False)
    optimized = [net[0].weight, *net[1].parameters(), *net[2].parameters()]
    found, reasons = find_layers(net, optimized)
    coverage = present_coverage(net, optimized, found, reasons)
    assert [(row.trained, row.supplied) for row in coverage.rows] == [(100, 100), (20, 0), (10, 0)]
    assert coverage.share == pytest.approx(100 / 130)


def test_a_weight_that_joins_the_optimizer_later_is_told() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
    gp = AdaGP(net, optimizer, schedules.always_backprop())
    assert gp.coverage().rows[1].reason == "its weight is not in the optimizer"
    optimizer.add_param_group({"params": list(net[1].parameters())})
    assert "joined the optimizer after AdaGP was attached" in gp.coverage().rows[1].reason
    assert gp.coverage().share == pytest.approx(0.5)


class Linear(nn.Module):
    """Another library's, with the name of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 40))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_type_that_is_not_covered_is_named_in_full() -> None:
    net = nn.Sequential(nn.Linear(40, 40), Linear())
    why = find_layers(net, net.parameters())[1]["1"]
    assert f"no rows for type {Linear.__module__}.Linear:" in why


def test_low_coverage_is_told_when_attaching(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Embedding(100, 40), Linear(), nn.Linear(40, 40))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    AdaGP(net, optimizer, schedules.always_backprop())
    assert not caplog.records
    AdaGP(net, optimizer, schedules.fixed(1, 1))
    assert "only 22.7 % of the trained parameters are covered" in caplog.text
    assert "'0' (Embedding, 4,000), '1' (Linear, 1,600)" in caplog.text
    caplog.clear()
    net[0].weight.requires_grad_(False)
    AdaGP(net, optimizer, schedules.fixed(1, 1))
    assert not caplog.records


def test_a_bias_outside_the_optimizer_or_of_another_layer_is_left_alone() -> None:
    one, two = nn.Linear(3, 2), nn.Linear(4, 2)
    assert find_layers(one, [one.weight])[0][0].bias is None
    two.bias = one.bias
    net = nn.ModuleList([one, two])
    first, second = find_layers(net, net.parameters())[0]
    assert first.bias is one.bias
    assert second.bias is None
