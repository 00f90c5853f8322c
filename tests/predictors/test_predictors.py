"""The predictor against a second implementation: predictions written out, and autograd."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from adagp import AdaGP, predictors, schedules
from adagp.layers import Layer
from adagp.layers.coverage import find_layers
from adagp.layers.rows import Rows
from adagp.predictors import Features, PaperPredictor, Predictor, TrainingExample, TrustedPredictor, build
from tests.nets import alignment, look


def layers() -> list[Layer]:
    model = nn.ModuleList([nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1, bias=False), nn.Linear(5, 7)])
    return find_layers(model, model.parameters())[0]


def outputs(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=generator) for shape in ((8, 6, 9, 9), (8, 4, 5, 5), (8, 7))]


def examples(predictor: Predictor, found: list[Layer], generator: torch.Generator) -> list[TrainingExample]:
    made = []
    for layer, output in zip(found, outputs(generator), strict=True):
        weight = torch.randn(layer.out, layer.fan_in, generator=generator) * 0.3
        bias = None if layer.bias is None else torch.randn(layer.out, 1, generator=generator) * 2
        true_grad = Rows(weight, bias)
        squares = tuple(float(block.square().sum()) for block in true_grad.blocks())
        features = look(predictor, layer, output) if layer.name in predictor.layers_to_train_on() else None
        made.append(TrainingExample(layer, features, true_grad, squares))
    return made


def predict(predictor: Predictor, layer: Layer, features: Features) -> Any:
    return next(predictor.predict([(layer, features)]))


def flat(rows: Rows) -> Tensor:
    return torch.cat([block.flatten() for block in rows.blocks()])


class Oracle:
    """The same network, its loss written out over full predictions and differentiated by autograd."""

    def __init__(self, twin: PaperPredictor) -> None:
        self.grid = twin._grid
        self.conv = nn.Conv2d(1, twin._channels, 3, padding=1)
        vector_to_parameters(twin._conv.values.clone(), self.conv.parameters())
        self.last = nn.Parameter(twin._last.t().clone())
        # Adam steps by the sign of a gradient that is 0 but for rounding, unless its epsilon is larger than that.
        self.optimizer = torch.optim.Adam([*self.conv.parameters(), self.last], lr=twin._lr, eps=1e-3)
        twin._adam._eps = 1e-3

    def step(self, twin: PaperPredictor, batch: list[TrainingExample], bases: dict[str, Rows]) -> None:
        loss = torch.zeros(())
        for example in batch:
            assert example.features is not None
            pooled = example.features.output / example.features.output.square().mean().sqrt()
            features = torch.relu(self.conv(pooled.view(-1, 1, self.grid, self.grid))).flatten(1)
            features = torch.cat([features, torch.ones(len(features), 1)], dim=1)
            blocks, base = example.true_grad.blocks(), bases.get(example.layer.name)
            units = [self.last[1 : 1 + example.layer.fan_in], self.last[:1]]
            scales = twin._scales(example.layer, example.squares)
            for index, true_grad in enumerate(blocks):
                target = true_grad if base is None else true_grad - base.blocks()[index]
                loss = loss + (features @ units[index].t() - target / scales[index]).square().mean() / len(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(1, 3), st.integers(2, 4))
def test_learning_equals_autograd(seed: int, with_base: bool, channels: int, grid: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = layers()
    predictor = PaperPredictor(lr=1e-2, seed=seed, channels=channels, grid=grid)
    predictor.attach(found)
    oracle = Oracle(predictor)
    for _ in range(4):
        batch = examples(predictor, found, generator)
        bases = {
            example.layer.name: Rows(
                *(None if b is None else torch.randn(b.shape, generator=generator) for b in example.true_grad)
            )
            for example in batch
            if with_base
        }
        oracle.step(predictor, batch, bases)
        predictor.fit(batch, bases)
        assert torch.allclose(oracle.last.t(), predictor._last, atol=1e-5)
        assert torch.allclose(parameters_to_vector(oracle.conv.parameters()), predictor._conv.values, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["paper", "literal", "trusted"]))
def test_reported_alignment_is_that_of_the_prediction_written_out(seed: int, name: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = layers()
    predictor = TrustedPredictor(PaperPredictor()) if name == "trusted" else build(name)  # that studies every batch
    predictor.attach(found)
    for step in range(9):
        batch = examples(predictor, found, generator)
        requests = [(example.layer, example.features) for example in batch if example.features is not None]
        if isinstance(predictor, TrustedPredictor):
            written = list(predictor._means.scaled(requests, [1.0] * len(requests)))
        else:
            written = [rows for rows in predictor.predict(requests) if rows is not None]
        reported = predictor.learn(batch)
        for example, rows in zip(batch, written, strict=True):
            expected, features = alignment(flat(rows), flat(example.true_grad)), reported[example.layer.name]
            assert features.cosine == pytest.approx(expected.cosine, abs=1e-4), step
            assert features.norm_ratio == pytest.approx(expected.norm_ratio, rel=1e-3, abs=1e-4)
            assert features.mse == pytest.approx(expected.mse, rel=1e-3)
            pick = slice(None, None, -(-example.layer.out // 8))
            sampled = alignment(rows.weight[pick], example.true_grad.weight[pick])
            if step in (0, 8):  # it is taken anew in every eighth example only
                assert features.mape == pytest.approx(sampled.mape, rel=1e-3)


def test_smaller_layers_use_a_slice_of_the_last_layer() -> None:
    found = layers()
    predictor = PaperPredictor()
    predictor.attach(found)
    assert predictor._last.shape == (17, 1 + 27)
    assert predict(predictor, found[2], Features(torch.randn(7, 16))).weight.shape == (7, 5)


def test_the_network_learns_what_can_be_learned() -> None:
    """Rows that are a linear function of the pooled output: cosine must approach 1."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Conv2d(3, 32, 1)
    layer = find_layers(module, module.parameters())[0][0]
    predictor = PaperPredictor(lr=1e-2, channels=4)
    predictor.attach([layer])
    mixing = torch.randn(16, 3, generator=generator)
    cosines = []
    for _ in range(300):
        features = look(predictor, layer, torch.rand(4, 32, 4, 4, generator=generator))
        true_grad = Rows(features.output @ mixing, torch.zeros(32, 1))
        squares = (float(true_grad.weight.square().sum()), 0.0)
        cosines.append(predictor.learn([TrainingExample(layer, features, true_grad, squares)])[layer.name].cosine)
    assert cosines[0] == 0
    assert cosines[-1] > 0.9


def test_biases_are_predicted_only_where_wanted() -> None:
    found = layers()
    for wanted in (True, False):
        predictor = PaperPredictor(predict_bias=wanted)
        predictor.attach(found)
        rows = predict(predictor, found[0], Features(torch.randn(6, 16)))
        assert (rows.bias is not None) == wanted
        assert predictor.learn(examples(predictor, found, torch.Generator()))["0"].count == 6 * (27 + wanted)


def test_layers_take_turns_when_few_are_learned_a_step() -> None:
    generator = torch.Generator().manual_seed(0)
    found = layers()
    predictor = PaperPredictor(layers_per_step=2)
    predictor.attach(found)
    turns = [sorted(predictor.learn(examples(predictor, found, generator))) for _ in range(40)]
    for first, second in zip(turns[::2], turns[1::2], strict=True):  # a round of two and one
        assert sorted(first + second) == ["0", "1", "2"]
        assert len(first) == 2
    assert len({tuple(turn) for turn in turns[::2]}) == 3
    with pytest.raises(ValueError, match="layers_per_step"):
        PaperPredictor(layers_per_step=0)
    with pytest.raises(ValueError, match="steps_per_round = 0"):
        PaperPredictor(steps_per_round=0)


def test_turns_do_not_keep_step_with_a_plan_that_alternates() -> None:
    model = nn.ModuleList([nn.Linear(4, 3) for _ in range(4)])
    found = find_layers(model, model.parameters())[0]
    predictor = PaperPredictor(layers_per_step=2)
    predictor.attach(found)
    layers_to_train_on = set()
    for step in range(40):
        true = found[:2] if step % 2 else found[2:]  # those it would learn from have no true gradient
        true_grad = Rows(torch.ones(3, 4), torch.ones(3, 1))
        examples = [
            TrainingExample(
                layer,
                Features(torch.ones(3, 16)) if layer.name in predictor.layers_to_train_on() else None,
                true_grad,
                (12.0, 3.0),
            )
            for layer in true
        ]
        layers_to_train_on |= predictor.learn(examples).keys()
    assert layers_to_train_on == {"0", "1", "2", "3"}


def test_a_layer_without_features_is_judged_by_its_mean_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    found = layers()
    predictor = TrustedPredictor(PaperPredictor(lr=1e-1, layers_per_step=1))
    predictor.attach(found)
    layers_to_train_on = []
    for _ in range(7):
        batch = examples(predictor, found, generator)
        before = {layer.name: predictor.trust(layer.name) for layer in found}
        expected = {}
        for example in batch:
            mean = predictor._means.get(example.layer.name)
            if example.features is not None:
                layers_to_train_on.append(example.layer.name)
                (rows,) = predictor._means.scaled([(example.layer, example.features)], [1.0])
            elif mean is not None:
                rows = mean.clone()
            else:
                rows = Rows(*(None if block is None else torch.zeros_like(block) for block in example.true_grad))
            expected[example.layer.name] = alignment(flat(rows), flat(example.true_grad))
        found_now = predictor.learn(batch)
        assert found_now.keys() == before.keys()
        for name, features in found_now.items():
            assert features.cosine == pytest.approx(expected[name].cosine, abs=1e-4)
            assert features.norm_ratio == pytest.approx(expected[name].norm_ratio, rel=1e-3, abs=1e-4)
            assert predictor.trust(name) == pytest.approx(min(max(before[name] + 0.03 * features.cosine, 0), 1))
    assert sorted(layers_to_train_on[:3]) == sorted(layers_to_train_on[3:6]) == ["0", "1", "2"]


def test_the_paper_sees_the_whole_batch_and_the_default_sixteen_samples() -> None:
    module = nn.Conv2d(3, 6, 3)
    (layer,), _ = find_layers(module, module.parameters())
    output = torch.randn(64, 6, 5, 5)
    changed = output.clone()
    changed[1::4] += 1  # every fourth sample, the first of all among them, is in the sample of sixteen
    changed[2::4] -= 5
    changed[3::4] *= 9
    features = {name: look(build(name), layer, output).output for name in ("trusted", "paper", "literal")}
    again = {name: look(build(name), layer, changed).output for name in features}
    assert {name: torch.equal(features[name], again[name]) for name in features} == {
        "trusted": True,
        "paper": False,
        "literal": False,
    }
    with pytest.raises(ValueError, match="samples"):
        PaperPredictor(samples=0)


@pytest.mark.parametrize(("pixels", "samples"), [(4, 16), (16, 16), (20, 10), (32, 4), (64, 4)])
def test_fewer_samples_of_large_maps_are_seen(pixels: int, samples: int) -> None:
    module = nn.Conv2d(3, 6, 3)
    (layer,), _ = find_layers(module, module.parameters())
    output = torch.randn(160, 6, pixels, pixels)
    mean = output[:: 160 // samples].mean(0, keepdim=True)
    expected = nn.functional.adaptive_avg_pool2d(mean, 4)[0].flatten(1)
    assert torch.allclose(look(PaperPredictor(samples=16), layer, output).output, expected, atol=1e-6)
    sequence = nn.Linear(3, 6)
    (layer,), _ = find_layers(sequence, sequence.parameters())
    words = torch.randn(160, pixels * pixels, 6)
    expected = nn.functional.adaptive_avg_pool2d(words[:: 160 // samples].mean(0).t()[None, :, None], 4)[0].flatten(1)
    assert torch.allclose(look(PaperPredictor(samples=16), layer, words).output, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1, 1, 1]), (5, [2, 2, 1]), (8, [2] * 4), (18, [4, 4, 4, 4, 2, 4]), (40, [4] * 10)]
)
def test_the_default_studies_a_quarter_of_the_layers_and_at_most_four_in_every_batch_with_a_backward(
    count: int, expected: list[int]
) -> None:
    model = nn.ModuleList([nn.Linear(4, 3) for _ in range(count)])
    predictor = TrustedPredictor(fewest_weights=0)
    predictor.attach(find_layers(model, model.parameters())[0])
    studied = []
    for _ in expected:
        studied.append(predictor.layers_to_train_on())
        predictor.learn([])
    assert [len(names) for names in studied] == expected
    assert {name for names in studied for name in names} == {str(place) for place in range(count)}


def test_a_copy_of_a_predictor_goes_on_as_the_predictor_does() -> None:
    found, generator = layers(), torch.Generator().manual_seed(0)
    predictor = PaperPredictor(lr=1e-2)
    predictor.attach(found)
    again = copy.deepcopy(predictor)
    batch = examples(predictor, found, generator)
    predictor.learn(batch)
    again.learn(batch)
    assert batch[0].features is not None
    first, second = (predict(one, found[0], batch[0].features) for one in (predictor, again))
    assert first.weight.abs().sum() > 0
    assert torch.equal(first.weight, second.weight)


def test_a_layer_whose_first_true_gradient_is_zero_does_not_stop_the_others() -> None:
    """As in a residual block that begins as the identity: what divides by its scale must not blow up."""
    found, generator = layers(), torch.Generator().manual_seed(0)
    predictor = PaperPredictor(lr=1e-2)
    predictor.attach(found)
    for step in range(3):
        batch = examples(predictor, found, generator)
        if step == 0:
            still, *others = batch
            zero = Rows(torch.zeros_like(still.true_grad.weight), torch.zeros(still.layer.out, 1))
            batch = [TrainingExample(still.layer, still.features, zero, (0.0, 0.0)), *others]
        before = predictor._last.detach().clone()
        predictor.learn(batch)
        assert float(predictor._adam.state_dict()["square"].max()) < 1e3, step
        assert not torch.equal(before[:, 1:6], predictor._last[:, 1:6]), "the units that all layers share stand still"


def learn_constant(predictor: TrustedPredictor, sign: float, count: int) -> Any:
    module = nn.Linear(4, 3, bias=False)
    layer = find_layers(module, module.parameters())[0][0]
    predictor.attach([layer])
    for _ in range(count):
        true_grad = Rows(torch.ones(3, 4) * sign, None)
        predictor.learn([TrainingExample(layer, Features(torch.ones(3, 16)), true_grad, (12.0,))])
        sign = sign if count < 50 else -sign
    return layer


@pytest.mark.parametrize("fewest_weights", [0, 100_000])
def test_trust_grows_while_the_mean_points_right_and_dies_when_it_points_wrong(fewest_weights: int) -> None:
    predictor = TrustedPredictor(fewest_weights=fewest_weights)
    layer = learn_constant(predictor, 1.0, 40)
    assert predictor.trust(layer.name) == 1.0
    rows = predict(predictor, layer, Features(torch.ones(3, 16)))
    assert rows is not None
    assert torch.allclose(rows.weight, torch.ones(3, 4), atol=0.05)
    flipping = TrustedPredictor(fewest_weights=fewest_weights)
    layer = learn_constant(flipping, 1.0, 100)
    assert flipping.trust(layer.name) == 0.0
    assert predict(flipping, layer, Features(torch.ones(3, 16))) is None


def test_the_learning_rate_follows_its_milestones() -> None:
    found = layers()
    predictor = PaperPredictor(lr=1e-2, milestones=(2, 4), gamma=0.1)
    predictor.attach(found)
    rates = []
    for _ in range(5):
        predictor.learn(examples(predictor, found, torch.Generator()))
        rates.append(predictor._adam.lr)
    assert rates == pytest.approx([1e-2, 1e-3, 1e-3, 1e-4, 1e-4])


def test_predictions_scale_with_the_gradient() -> None:
    """Targets are scaled by the layer's own root mean square: gradients 1000 times as large are predicted as well."""
    found = layers()
    rows = []
    for size in (1.0, 1000.0):
        generator = torch.Generator().manual_seed(0)
        predictor = PaperPredictor(lr=1e-2)
        predictor.attach(found)
        for _ in range(5):
            batch = [
                TrainingExample(
                    example.layer,
                    example.features,
                    Rows(*(None if block is None else block * size for block in example.true_grad)),
                    tuple(square * size**2 for square in example.squares),
                )
                for example in examples(predictor, found, generator)
            ]
            predictor.learn(batch)
        features = batch[0].features
        assert features is not None
        rows.append(flat(predict(predictor, found[0], features)))
    assert rows[0].norm() > 0
    assert torch.allclose(rows[0] * 1000, rows[1], rtol=1e-3)


def test_mape_is_taken_anew_in_every_eighth_example_of_each_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    found = layers()
    predictor = PaperPredictor(lr=1e-1, layers_per_step=1)
    predictor.attach(found)
    features: dict[str, list[float]] = {layer.name: [] for layer in found}
    for _ in range(3 * 17):
        for name, agreed in predictor.learn(examples(predictor, found, generator)).items():
            features[name].append(agreed.mape)
    for values in features.values():
        changes = [index for index in range(1, 17) if values[index] != values[index - 1]]
        assert changes == [8, 16]


def test_a_predictor_is_registered_by_name() -> None:
    @predictors.register("eager")
    class Eager(PaperPredictor):
        """The paper's, by another name."""

    try:
        assert "eager" in predictors.names()
        model = nn.Sequential(nn.Linear(3, 2))
        gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.fixed(1, 1), "eager")
        gp.step(lambda: model(torch.ones(2, 3)).square().mean())
        assert gp.counts() == {"predicted": 1}
        with pytest.raises(ValueError, match="predictor 'eager' exists already"):
            predictors.register("eager")
    finally:
        predictors.unregister("eager")
    with pytest.raises(ValueError, match="predictor='eager' is unknown"):
        predictors.build("eager")
