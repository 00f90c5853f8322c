"""Mistakes that newcomers make, each refused by name: the layer or argument, the cause, the remedy."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, predictors, schedules, sources
from adagp.layers import Layer, Rows
from adagp.predictors import Features, FeatureSpec, PaperPredictor, Pooling
from adagp.schedules import SourceSpec
from tests.nets import sgd
from tests.watcher import Watcher

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def loss(model: nn.Module) -> Tensor:
    return model(X).square().mean()


def supplied(rows: Callable[[Layer], Any]) -> AdaGP:
    """An AdaGP whose GP batches are supplied by a source of the user's own."""

    class Own(sources.Skip):
        def gradient(self, layer: Layer, features: Features | None, samples: int) -> Any:
            return rows(layer)

    model = network()
    return AdaGP(model, sgd(model), schedules.fixed(1, 1, source="skip"), None, sources={"skip": Own()})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda layer: Rows(torch.ones(2, 5), None), r"layer '0': .*weight of shape \(2, 5\).*expected \(3, 4\)"),
        (lambda layer: Rows(torch.ones(1, 1), None), r"layer '0': .*weight of shape \(1, 1\).*expected \(3, 4\)"),
        (lambda layer: Rows(torch.ones(layer.out, layer.fan_in), torch.ones(3)), r"layer '0': .*bias of shape \(3,\)"),
        (lambda layer: torch.ones(layer.out, layer.fan_in), r"layer '0': .*gave a Tensor.*adagp\.layers\.Rows"),
    ],
    ids=["shape", "broadcast", "bias", "tensor"],
)
def test_rows_of_another_form_are_refused(rows: Callable[[Layer], Any], message: str) -> None:
    gp = supplied(rows)
    with pytest.raises((TypeError, ValueError), match=message):
        gp.step(lambda: loss(gp.model))


def test_a_source_that_raises_leaves_nothing_behind() -> None:
    calls: list[str] = []

    def fails_once(layer: Layer) -> Rows:
        calls.append(layer.name)
        if len(calls) == 2:
            raise ZeroDivisionError("in the source")
        return Rows(torch.ones(layer.out, layer.fan_in), torch.ones(layer.out, 1))

    gp = supplied(fails_once)
    with pytest.raises(ZeroDivisionError):
        gp.step(lambda: loss(gp.model))
    assert all(parameter.grad is None for parameter in gp.model.parameters())
    gp.step(lambda: loss(gp.model))


def test_a_batch_that_is_left_by_an_error_leaves_no_gradient() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), None)

    def fails() -> None:
        with gp.batch() as batch:
            batch.backward(loss(model))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert all(parameter.grad is None for parameter in model.parameters())
    gp.step(lambda: loss(model))


def test_a_subclass_is_checked_although_its_base_is_always_finite() -> None:
    class Normalised(sources.Last):
        def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
            rows = super().gradient(layer, features, samples)
            return None if rows is None else Rows(rows.weight * float("nan"), rows.bias)

    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="last"), None, sources={"last": Normalised()})
    for _ in range(4):
        gp.step(lambda: loss(model))
    assert gp.counts()["fallback"] == 1
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("schedule", [schedules.always_backprop(), schedules.fixed(1, 1)], ids=["BP", "GP"])
def test_a_closure_that_calls_backward_is_refused(schedule: schedules.Schedule) -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedule)

    def closure() -> Tensor:
        found = loss(model)
        found.backward(retain_graph=True)
        return found

    with pytest.raises(RuntimeError, match=r"the closure.*backward.*return the loss"):
        gp.step(closure)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("phase", ["BP", "GP"])
def test_a_loss_that_is_no_scalar_is_refused(phase: str) -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.always_backprop() if phase == "BP" else schedules.fixed(1, 1))
    with pytest.raises(ValueError, match=r"the loss has shape \(8, 2\): reduce it to one number"):
        gp.step(lambda: model(X).square())


def test_what_is_no_closure_is_refused() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    with pytest.raises(TypeError, match=r"closure = tensor.*give a function that returns the loss"):
        gp.step(loss(model).detach())  # type: ignore[call-overload]


class FewRows(PaperPredictor):
    """Forgets the last layer."""

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        return iter(list(super().predict(requests))[:-1])


class ListOfRows(PaperPredictor):
    """Returns a list, which is as good."""

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Any:
        return list(super().predict(requests))


def test_a_predictor_that_returns_too_few_rows_is_named() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), FewRows())
    with pytest.raises(ValueError, match=r"FewRows\.predict gave 1 rows for 2 layers"):
        gp.step(lambda: loss(model))


def test_a_predictor_may_return_a_list() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), ListOfRows())
    gp.step(lambda: loss(model))
    assert gp.counts() == {"predicted": 2}


def test_a_predictor_that_learns_without_an_answer_is_named() -> None:
    class Silent(Watcher):
        def learn(self, examples: Any) -> Any:
            return None

    model = network()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), Silent(FeatureSpec(output=Pooling())))
    with pytest.raises(TypeError, match=r"Silent\.learn gave None.*a dict of GradientAlignment by layer, or \{\}"):
        gp.step(lambda: loss(model))


def test_a_registered_predictor_without_a_method_is_named() -> None:
    @predictors.register("half-done")
    class HalfDone:
        needs = FeatureSpec()

    model = network()
    try:
        with pytest.raises(TypeError, match="it has no attach, layers_to_train_on"):
            AdaGP(model, sgd(model), schedules.fixed(1, 1), "half-done")
    finally:
        predictors.unregister("half-done")


@pytest.mark.parametrize("needs", [{}, None, FeatureSpec], ids=["dict", "none", "class"])
def test_needs_must_be_a_feature_spec(needs: Any) -> None:
    model = network()
    with pytest.raises(TypeError, match=r"needs is .*: give a FeatureSpec"):
        AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(needs))


@pytest.mark.parametrize("field", ["input", "output"])
def test_features_must_be_pooled(field: str) -> None:
    with pytest.raises(TypeError, match=rf"{field} = 4: give a Pooling, such as Pooling\(grid=4\), or None"):
        FeatureSpec(**{field: 4})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schedules.ladder("100"), "steps_per_epoch: must be a whole number"),
        (lambda: schedules.fixed(1.5, 1), r"rungs: \(1.5, 1\) must be whole numbers"),
    ],
)
def test_numbers_must_be_whole(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"last": sources.Last}, r"sources\['last'\] = <class .*give an object, such as Last\(\)"),
        ([sources.Last()], r"sources = .*give a dict of names and objects"),
        ({"last": sources.Zero()}, r"sources\['last'\] = .* is the source 'zero': register its class"),
        ({"last": sources.Source()}, r"sources\['last'\] = .* has no spec"),
    ],
    ids=["class", "list", "another", "base"],
)
def test_sources_must_be_objects_by_name(given: Any, message: str) -> None:
    model = network()
    with pytest.raises((TypeError, ValueError), match=message):
        AdaGP(model, sgd(model), schedules.fixed(1, 1, source="last"), None, sources=given)


def test_what_is_no_spec_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match="register takes a SourceSpec"):
        sources.register("mine")  # type: ignore[arg-type]
    for colour in ("blue", "#12345", "#gggggg"):
        with pytest.raises(ValueError, match=rf"colour '{colour}' is not of the form #rrggbb"):
            sources.register(SourceSpec("mine", "a test's", "Y", colour))(type("Mine", (sources.Source,), {}))
    with pytest.raises(ValueError, match=r"source 'zero' exists already: .*sources\.unregister"):
        sources.register(SourceSpec("zero", "a test's", "Y", "#000000"))(type("Mine", (sources.Source,), {}))


def test_the_phase_of_the_open_batch_can_be_asked() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(FeatureSpec(loss_grad=True, output=Pooling())))
    seen = []

    def closure() -> Tensor:
        seen.append(gp.phase)
        return loss(model)

    for _ in range(2):
        gp.step(closure)
    assert seen == [Phase.GP, Phase.BP]
