"""Glances against the mean written out, in every memory layout, and how much memory they may take."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import AdaGP, Phase, schedules
from adagp._engine.capture.pooling import BatchSum, Pooler, SumLayout, stack_feature_maps
from adagp.layers import Layer, LayerKind
from adagp.layers.coverage import find_layers
from adagp.layers.rows import Rows
from adagp.predictors import Features, PaperPredictor, Pooling, TrustedPredictor
from tests.nets import equal_parameters, look, sgd

KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def layer_of(module: nn.Module) -> Layer:
    return find_layers(module, module.parameters())[0][0]


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Layer, Tensor]:
    """A layer and an output with its dimensions in any order in memory, dense or with gaps."""
    dimensions = draw(st.sampled_from((0, 1, 2, 3)))
    out = draw(st.integers(1, 4))
    positions = [draw(st.integers(1, 5)) for _ in range(dimensions)]
    batch = draw(st.integers(1, 9))
    if dimensions and draw(st.booleans()):
        module: nn.Module = KINDS[dimensions](2, out, 1)
        shape = [batch, out, *positions]
    else:
        module = nn.Linear(2, out)
        shape = [batch, *positions, out]
    gap = draw(st.integers(1, 2))
    order = draw(st.permutations(range(len(shape))))
    stored = torch.randn([shape[place] * gap for place in order])
    kept = stored[tuple(slice(None, None, gap) for _ in order)]
    back = [order.index(place) for place in range(len(shape))]
    return layer_of(module), kept.permute(back)


@settings(max_examples=150, deadline=None)
@given(outputs(), st.none() | st.integers(1, 10))
def test_a_batch_sum_is_the_mean_over_evenly_spread_samples(case: tuple[Layer, Tensor], most: int | None) -> None:
    layer, output = case
    count = len(output)
    step = 1 if most is None else -(-count // most)
    picked = output[[place for place in range(count) if place % step == 0]].mean(0, keepdim=True)
    batch_sum = SumLayout.of(layer, output, most).sum_samples(output)
    assert batch_sum.total.dim() == 1
    assert torch.allclose(batch_sum.mean(), picked, atol=1e-6)
    ((places, maps),) = stack_feature_maps([(layer, batch_sum)])
    assert places == [0]
    assert torch.allclose(maps[0], layer.reorganise(picked)[:, 0], atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("most", "picked"), [(1, [0]), (3, [0, 3, 6]), (7, [0, 1, 2, 3, 4, 5, 6]), (9, range(7))])
def test_the_samples_are_these(layout: torch.memory_format, most: int, picked: list[int]) -> None:
    module = nn.Conv2d(3, 5, 3)
    output = module(torch.randn(7, 3, 9, 8)).to(memory_format=layout)
    layout = SumLayout.of(layer_of(module), output, most)
    assert layout.steps is not None, "both layouts are read without a copy"
    assert torch.allclose(layout.sum_samples(output).mean()[0], output[list(picked)].mean(0), atol=1e-6)


def test_no_sample_is_taken_where_there_is_no_batch() -> None:
    convolution, linear = nn.Conv2d(3, 4, 3), nn.Linear(6, 8)
    for module, output in ((convolution, convolution(torch.randn(3, 8, 8))), (linear, linear(torch.randn(6)))):
        batch_sum = SumLayout.of(layer_of(module), output, 2).sum_samples(output)
        assert torch.equal(batch_sum.mean(), output)
        assert not batch_sum.total.requires_grad


def test_layers_alike_are_reorganised_together_and_none_is_mixed_up() -> None:
    model = nn.ModuleList([nn.Conv2d(3, 4, 1), nn.Linear(3, 4), nn.Conv2d(5, 4, 1), nn.Conv2d(3, 4, 1)])
    found, _ = find_layers(model, model.parameters())
    made = [torch.randn(6, 4, 5, 5), torch.randn(6, 4), torch.randn(6, 4, 5, 5), torch.randn(8, 4, 5, 5)]
    predictor = PaperPredictor(samples=3)
    pooler = Pooler(Pooling(4, 3), Layer.reorganise)
    sums = [(layer, pooler.sum_samples(layer, output)) for layer, output in zip(found, made, strict=True)]
    assert [places for places, _ in stack_feature_maps(sums)] == [[0, 2, 3], [1]]
    for one, layer, output in zip(pooler.pool(sums), found, made, strict=True):
        assert torch.equal(one, look(predictor, layer, output).output)


def test_an_output_of_another_form_is_read_anew() -> None:
    module = nn.Conv2d(3, 4, 1)
    layer, predictor = layer_of(module), PaperPredictor()
    for shape in ((6, 4, 5, 5), (6, 4, 3, 7), (2, 4, 5, 5), (6, 4, 5, 5)):
        for layout in (torch.contiguous_format, torch.channels_last):
            output = torch.randn(shape).to(memory_format=layout)
            expected = nn.functional.adaptive_avg_pool2d(output.mean(0, keepdim=True), 4)[0].flatten(1)
            assert torch.allclose(look(predictor, layer, output).output, expected, atol=1e-6)


class Gate(nn.Module):
    """One weight per feature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class GateKind(LayerKind):
    """Rows of one weight each; how it reorganises is set by the test."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor], batched: bool = True) -> None:
        self._change, self._batched = change, batched

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        return weight_like[:, None]

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        return rows[:, 0]

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        return self._change(module, output)

    def has_batch(self, module: nn.Module, output: Tensor) -> bool:
        return self._batched


def gate(change: Callable[[nn.Module, Tensor], Tensor], batched: bool = True) -> Layer:
    module = Gate()
    return Layer("gate", module, GateKind(change, batched), module.weight, None, 4, 1)


CHANGES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "computes": lambda module, output: output.mean(0).abs()[:, None, None, None],
    "multiplies": lambda module, output: (output.mean(0) * module.weight)[:, None, None, None],
    "writes": lambda module, output: output[0].relu_()[:, None, None, None],
    "is a view": lambda module, output: output[0][:, None, None, None],
    "flips": lambda module, output: output.mean(0).flip(0)[:, None, None, None],
    "repeats": lambda module, output: output[0, :1].expand(4)[:, None, None, None],
    "has an offset": lambda module, output: output[0, 1:2].expand(4)[:, None, None, None],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", list(CHANGES))
def test_a_kind_may_do_what_it_likes_with_the_mean(name: str, dtype: torch.dtype) -> None:
    layer, predictor = gate(CHANGES[name]), PaperPredictor()
    layer.module.to(dtype)
    for _ in range(2):  # asked anew for each output
        output = torch.randn(6, 4).to(dtype)
        mean = output.mean(0, keepdim=True)
        expected = CHANGES[name](layer.module, mean.clone()).detach().float().reshape(4, 1).expand(4, 16)
        features = look(predictor, layer, output).output
        assert features.dtype == torch.float32
        assert torch.allclose(features, expected, atol=1e-6 if dtype.itemsize > 2 else 2e-2)


def test_an_output_without_a_batch_is_not_copied() -> None:
    layer = gate(lambda module, output: output.mean(1).t()[:, None, None, :], batched=False)
    output = torch.randn(5, 3, 4)  # time first
    batch_sum = Pooler(Pooling(), Layer.reorganise).sum_samples(layer, output)
    assert batch_sum.total.data_ptr() == output.data_ptr()
    assert not batch_sum.is_copy
    features = look(PaperPredictor(grid=1), layer, output).output
    assert torch.allclose(features, output.mean((0, 1))[:, None], atol=1e-6)


def test_a_single_sample_is_seen_before_an_activation_can_overwrite_it() -> None:
    features = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(inplace=inplace), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=inplace)
        )
        gp = AdaGP(model, sgd(model), schedules.always_backprop(), "paper")
        with gp.batch() as batch:
            batch.backward(model(torch.randn(1, 2, 9, 9)).mean())
        features.append(batch._layers["2"].outputs[0])
    assert torch.equal(*features)


class _LastLayerTrusted(TrustedPredictor):
    def __init__(self) -> None:
        super().__init__(fewest_weights=0)
        self.requests: set[str] = set()

    def trust(self, layer: str) -> float:
        return 0.5 if layer == "2" else 0.0

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        self.requests |= {layer.name for layer, _ in requests}
        return super().predict(requests)


@pytest.mark.parametrize("immediate", [False, True])
def test_a_layer_without_trust_is_left_alone_and_not_even_looked_at(immediate: bool) -> None:
    def trained(is_compiled: bool) -> tuple[nn.Module, list[set[str]]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        predictor = _LastLayerTrusted()
        gp = AdaGP(model, sgd(model), schedules.fixed(1, 2), predictor, immediate=immediate)
        gp._current.is_compiled = is_compiled
        looked = []
        for step in range(6):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with gp.batch() as batch:
                batch.backward(model(torch.randn(8, 3)).square().mean())
            batch.step()
            gp.optimizer.zero_grad()
            if step == 3:
                moved = [not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
                assert moved == [False, False, True, True]
            if batch.plan.phase is Phase.GP:
                looked.append({name for name, entry in batch._layers.items() if entry.outputs})
        assert gp.counts() == {"backprop": 8, "predicted": 2, "skip": 2}
        assert predictor.requests == {"2"}
        return model, looked

    one, looked = trained(is_compiled=False)
    assert looked == [{"2"}, {"2"}]
    two, looked = trained(is_compiled=True)  # looks at the same layers in every batch, and makes no more of it
    assert looked == [{"0", "2"}, {"0", "2"}]
    assert equal_parameters(one, two)


def test_layouts_of_many_shapes_are_kept_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagp._engine.capture.pooling._MOST_LAYOUTS", 3)
    module = nn.Linear(3, 4)
    layer, pooler = layer_of(module), Pooler(Pooling(), Layer.reorganise)
    for length in (1, 2, 1, 2, 3, 4, 5, 1):
        output = torch.randn(6, length, 4)
        expected = nn.functional.adaptive_avg_pool2d(output.mean(0).t()[None, :, None], 4)[0].flatten(1)
        assert torch.allclose(pooler.pool([(layer, pooler.sum_samples(layer, output))])[0], expected, atol=1e-6)
        assert len(pooler._layouts) <= 3


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_transformation_of_torch_func_may_run_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper")
    x = torch.randn(6, 3)

    def penalised() -> Tensor:
        _, slope = torch.func.jvp(model, (x,), (torch.ones_like(x),))
        return model(x).square().mean() + slope.square().mean()

    for _ in range(4):
        gp.step(penalised)
    assert gp.counts()["predicted"] == 4


def test_half_precision_is_summed_in_full() -> None:
    module = nn.Conv2d(3, 4, 1)
    output = torch.full((64, 4, 5, 5), 60_000.0).half()
    assert torch.isfinite(look(PaperPredictor(), layer_of(module), output).output).all()


@pytest.mark.parametrize("size", [64, 24])
def test_sums_never_take_more_than_a_share_of_the_largest_output(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(40)))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper")
    taken: list[list[int]] = []
    pool = Pooler.pool

    def watched(self: Pooler, sums: Sequence[tuple[Layer, BatchSum]]) -> list[Tensor]:
        taken.append([batch_sum.nbytes for _, batch_sum in sums])
        return pool(self, sums)

    monkeypatch.setattr(Pooler, "pool", watched)
    x = torch.randn(size, 4, 8, 8)
    for _ in range(2):
        gp.step(lambda: model(x).square().mean())
    assert sum(map(len, taken)) == 80
    assert max(map(sum, taken)) <= x.nbytes / 16
    assert len(taken) == 2 * -(-40 // (size // 16)), "as many at once as that allows"
