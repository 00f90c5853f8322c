import pytest

from adagp import schedules
from adagp.advice.agreement import Agreement, Sums
from adagp.advice.layers import LayerTimes
from adagp.advice.plan import judge_layers, plan_of, table_of
from adagp.schedules import SourceSpec
from adagp.schedules import sources as table


def times(source_seconds: float, name: str = "topk") -> list[LayerTimes]:
    """Three equal parts, of which the source replaces one."""
    return [LayerTimes("conv", "Conv2d", 1.0, 1.0, 1.0, {name: source_seconds})]


def with_cosine(cosine: float) -> Agreement:
    return Agreement({"topk": {"conv": Sums(cosine, 1.0, 1.0)}}, batches=1)


@pytest.mark.parametrize(("cosine", "source"), [(0.81, "backprop"), (0.83, "topk")])
def test_a_biased_source_needs_the_cosine_of_the_formula(cosine: float, source: str) -> None:
    (layer,) = judge_layers(times(0.0), with_cosine(cosine))
    assert layer.source == source
    assert layer.break_even == {"topk": "cosine above 0.82"}


def test_a_source_that_saves_nothing_never_pays() -> None:
    (layer,) = judge_layers(times(1.5), with_cosine(1.0))
    assert layer.source == "backprop"
    assert layer.break_even == {"topk": "not quicker than the exact gradient"}


@pytest.mark.parametrize(("variance", "source"), [(0.19, "draws"), (0.21, "backprop")])
def test_an_unbiased_source_may_add_the_variance_of_the_formula(
    variance: float, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table._SPECS, "draws", SourceSpec("draws", "a part", "D", "#000000", unbiased=True))
    # Two batches that differ by 2: each has a variance of 1. The source's own error is the variance it adds.
    agreement = Agreement(
        {"draws": {"conv": Sums(2.0, 2.0 + 2 * variance, 2.0)}}, {"conv": Sums(0.0, 1.0, 1.0)}, batches=2
    )
    assert agreement.added_variance("draws", "conv") == pytest.approx(variance)
    (layer,) = judge_layers(times(0.5, "draws"), agreement)
    assert layer.source == source
    assert layer.break_even == {"draws": "added variance below 0.20"}
    assert layer.spread == pytest.approx(2.0)


def test_the_plan_is_a_table_that_schedules_read() -> None:
    layers = [*judge_layers(times(0.0), with_cosine(0.9)), LayerTimes("head", "Linear", 1.0, 1.0, 1.0)]
    plan = plan_of(layers[:1])
    text = table_of(plan, ["conv", "head"], {"advised": "worth 1.20 x"})
    assert text.splitlines()[0] == "# advised: worth 1.20 x"
    read = schedules.from_table(text, ["conv", "head"])(3)
    assert (read.source("conv"), read.source("head")) == ("topk", "backprop")
