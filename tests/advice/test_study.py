"""The whole of it, on a real model, with a clock of our own and with the machine's."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adagp
from adagp import schedules
from adagp.advice import Advice, exact, exact_study
from adagp.advice.result import COLUMNS
from adagp.sources import TopK
from tests.nets import batches, loss_of, sgd


def pooled(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


class Twice(nn.Module):
    """A block that a model repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class SyntheticMachine:
    """A clock on which a batch takes a known time, and channels-last or small images a known part of it."""

    def __init__(self, noise: float, channels_last: float = 0.8) -> None:
        self.now, self._noise, self._random = 0.0, noise, random.Random(0)
        self._channels_last = channels_last
        self.scale = 1.0

    def clock(self) -> float:
        return self.now

    def watch(self, model: nn.Sequential) -> None:
        model[0].register_forward_pre_hook(self._forward)

    def _forward(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        last = inputs[0].is_contiguous(memory_format=torch.channels_last)
        seconds = self.scale * (self._channels_last if last else 1.0) * (inputs[0].shape[-1] / 6) ** 2
        self.now += seconds * exp(self._noise * abs(self._random.gauss(0, 1)))


def synthetic(noise: float, seconds: float, channels_last: float = 0.8, **options: Any) -> Advice:
    model, machine = pooled(), SyntheticMachine(noise, channels_last)
    machine.watch(model)
    return adagp.advise(
        model,
        sgd(model),
        lambda batch: loss_of(model, *batch),
        loader=batches(6),
        seconds=seconds,
        clock=machine.clock,
        **options,
    )


@pytest.fixture(autouse=True)
def _one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "available_cpus", torch.get_num_threads)


def test_what_is_faster_is_found_with_the_lines_to_write() -> None:
    advice = synthetic(noise=0.02, seconds=400)
    found = {option.name: option for option in advice.exact}
    assert found["channels-last"].pays
    assert found["channels-last"].speed_up.ratio == pytest.approx(1.25, rel=0.05)
    assert found["channels-last"].speed_up.low < 1.25 < found["channels-last"].speed_up.high
    assert found["fused optimizer"].finding == "unclear"
    assert advice.code()[0] == "model = model.to(memory_format=torch.channels_last)"
    assert next(option.name for option in advice.options() if option.exact) == "channels-last"
    sentence = next(line for line in advice.verdict if line.startswith("channels-last"))
    assert "exact" in sentence
    same = next(line for line in advice.verdict if line.startswith("fused optimizer"))
    assert "no difference seen, 0.9" in same


def test_noise_widens_the_intervals_and_no_false_promise_is_made() -> None:
    calm, busy = synthetic(0.02, 600), synthetic(1.5, 600)

    def width(advice: Advice) -> float:
        found = next(option for option in advice.exact if option.name == "channels-last").speed_up
        return found.high / found.low

    assert width(busy) > 1.3 * width(calm)
    nothing = synthetic(1.5, 300, channels_last=1.0)
    assert not any(option.pays for option in nothing.exact)
    assert nothing.together is None
    assert nothing.code() == []


def test_too_little_time_promises_nothing() -> None:
    advice = synthetic(0.02, 1.0)
    assert advice.options() == []
    assert advice.verdict[0].startswith("There was no time to measure anything but the training as it is")
    assert any("no time left for it, about" in line for line in advice.verdict)


@pytest.mark.parametrize("seconds", [10, 40, 300])
def test_the_time_is_kept(seconds: float) -> None:
    assert synthetic(0.02, seconds).spent <= 5 + seconds * 1.1


def test_small_images_and_sources_are_judged_by_time_and_agreement() -> None:
    advice = synthetic(0.02, 600)
    found = {source.option.name: source for source in advice.sources}
    assert set(found) >= {"predicted", "topk", "last", "mean", "zero", "coarse"}
    assert found["coarse"].option.speed_up.ratio == pytest.approx(4.0, rel=0.1)
    assert found["zero"].option.kept == 0.0
    assert not found["zero"].option.pays
    for source in found.values():
        assert source.option.worth == pytest.approx(source.option.speed_up.ratio * source.option.kept)
        assert source.option.peak_bytes
    assert [layer.name for layer in advice.layers] == ["0", "5"]
    assert all(layer.spread is not None for layer in advice.layers)


def test_what_repeats_earlier_gradients_is_no_promise() -> None:
    """Gradients that hardly change from batch to batch only say that the learning rate is small."""
    model, machine = pooled(), SyntheticMachine(0.02)
    machine.watch(model)
    data = batches(1) * 8
    small = torch.optim.SGD(model.parameters(), lr=1e-6)
    advice = adagp.advise(
        model, small, lambda batch: loss_of(model, *batch), loader=data, seconds=400, clock=machine.clock
    )
    last = next(source for source in advice.sources if source.option.name == "last")
    assert last.cosine > 0.99
    assert not last.option.pays
    assert last.option.caveat


def test_a_slow_batch_is_run_no_more_often_than_needed() -> None:
    """Batches of 36 seconds, where 60 were asked for: no option can be measured, so that two batches are enough."""
    model = pooled()
    calls, machine = [], SyntheticMachine(0.0)
    machine.watch(model)

    def closure(batch: Any) -> Tensor:
        machine.now += 35.0
        calls.append(batch)
        return loss_of(model, *batch)

    advice = adagp.advise(model, sgd(model), closure, loader=batches(6), seconds=60, clock=machine.clock)
    assert len(calls) == 2
    assert advice.seconds == pytest.approx(36.0)
    assert advice.peak_bytes is None
    assert advice.rows()[0][7] == ""
    assert "there is no time left for it, about" in advice.not_measured["sources"]


@pytest.mark.parametrize(("batch", "seconds", "known"), [(1.0, 20, 2), (5.0, 60, 1), (5.0, 20, 0), (30.0, 20, 0)])
def test_slow_batches_leave_the_time_to_the_options_that_fit(batch: float, seconds: float, known: int) -> None:
    """What has no time for itself leaves it to the others; three rounds of each option are enough to tell."""
    model, machine = pooled(), SyntheticMachine(0.02)
    machine.watch(model)
    machine.scale = batch
    advice = adagp.advise(
        model,
        sgd(model),
        lambda batch: loss_of(model, *batch),
        loader=batches(6),
        seconds=seconds,
        clock=machine.clock,
    )
    assert advice.spent < max(1.05 * seconds, 2.1 * batch)
    assert advice.seconds == pytest.approx(batch, rel=0.1)
    assert len(advice.options()) == known
    assert all(option.speed_up.rounds >= 3 for option in advice.options())
    if known:
        assert advice.verdict[0].startswith("Use channels-last: 1.2")


def test_an_option_that_takes_long_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, machine = pooled(), SyntheticMachine(0.02)
    machine.watch(model)

    @contextmanager
    def slow() -> Iterator[None]:
        machine.scale = 10.0
        yield
        machine.scale = 1.0

    options = exact.exact_options
    monkeypatch.setattr(
        exact_study, "exact_options", lambda subject: [*options(subject), exact.ExactOption("slow", (), slow)]
    )
    advice = adagp.advise(
        model, sgd(model), lambda batch: loss_of(model, *batch), loader=batches(6), seconds=90, clock=machine.clock
    )
    assert advice.spent < 100
    assert "given up after its first batch, which took 1" in advice.not_measured["slow"]
    assert {option.name for option in advice.exact} == {"channels-last", "fused optimizer", "foreach optimizer"}
    assert next(option for option in advice.exact if option.name == "channels-last").pays


def test_a_compile_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def forever() -> Iterator[None]:
        time.sleep(30)
        yield

    monkeypatch.setattr(exact_study, "compile_option", lambda subject: exact.ExactOption("torch.compile", (), forever))
    monkeypatch.setattr(exact_study, "MOST_STARTS", 0.5)
    model, ticks = pooled(), count()
    advice = adagp.advise(
        model,
        sgd(model),
        lambda batch: loss_of(model, *batch),
        loader=batches(2),
        seconds=1,
        compile=True,
        clock=lambda: next(ticks) / 500,
    )
    assert advice.not_measured["torch.compile"] == "given up: its first batch did not end within 0.5 s"
    assert {option.name for option in advice.exact} >= {"channels-last", "fused optimizer"}


def test_a_slow_loader_is_not_waited_for() -> None:
    model, machine = pooled(), SyntheticMachine(0.0)
    machine.watch(model)

    def slow() -> Iterator[Any]:
        for batch in batches(12):
            machine.now += 10.0
            yield batch

    advice = adagp.advise(
        model, sgd(model), lambda batch: loss_of(model, *batch), loader=slow(), seconds=100, clock=machine.clock
    )
    assert advice.spent < 110
    assert advice.phases["loading"] == pytest.approx(10.0)


def test_a_gradient_that_is_not_finite_costs_the_sources_alone() -> None:
    model, data = pooled(), batches(12)
    data[8] = (data[8][0] * float("nan"), data[8][1])
    machine = SyntheticMachine(0.02)
    machine.watch(model)
    advice = adagp.advise(
        model, sgd(model), lambda batch: loss_of(model, *batch), loader=data, seconds=400, clock=machine.clock
    )
    assert advice.exact
    assert advice.sources == ()
    assert "at this learning rate a loss or gradient is not finite" in advice.not_measured["sources"]


def test_a_later_batch_that_fails_costs_the_sources_alone() -> None:
    model, data = pooled(), batches(12)
    data[8] = (data[8][0][:, :1], data[8][1])
    machine = SyntheticMachine(0.02)
    machine.watch(model)
    advice = adagp.advise(
        model, sgd(model), lambda batch: loss_of(model, *batch), loader=data, seconds=400, clock=machine.clock
    )
    assert advice.exact
    assert re.search(r"nets.py, line \d+: RuntimeError: .*channels", advice.not_measured["sources"])


def test_mixed_precision_is_measured_in_every_part() -> None:
    model, data = pooled(), batches(6)

    def closure(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, *batch)

    ticks = count()
    advice = adagp.advise(model, sgd(model), closure, loader=data, seconds=1, clock=lambda: next(ticks) / 500)
    assert "sources" not in advice.not_measured
    assert [layer.name for layer in advice.layers] == ["0", "5"]


def test_compile_stands_on_what_pays_and_brings_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that makes batches a third shorter."""
    model, machine = pooled(), SyntheticMachine(0.005)
    machine.watch(model)

    @contextmanager
    def compiled() -> Iterator[None]:
        machine.scale = 2 / 3
        yield
        machine.scale = 1.0

    monkeypatch.setattr(
        exact_study,
        "compile_option",
        lambda subject: exact.ExactOption("torch.compile", ("model.compile()",), compiled),
    )
    advice = adagp.advise(
        model,
        sgd(model),
        lambda batch: loss_of(model, *batch),
        loader=batches(6),
        seconds=400,
        compile=True,
        clock=machine.clock,
    )
    found = advice.exact[-1]
    assert found.name == "channels-last + torch.compile"
    assert found.speed_up.ratio == pytest.approx(1.25 * 1.5, rel=0.03)
    assert found.last_part is not None
    assert found.last_part.ratio == pytest.approx(1.5, rel=0.03)
    assert advice.verdict[0].startswith("Use channels-last + torch.compile: 1.8")
    assert advice.code()[0] == "model = model.to(memory_format=torch.channels_last)"
    assert advice.code()[-1] == "model.compile()"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_not_compiled_again(in_place: bool) -> None:
    own = nn.Sequential(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()), *(Twice() for _ in range(2)))
    model = own
    if in_place:
        own.compile(backend="eager")
    else:
        model = torch.compile(own, backend="eager")  # type: ignore[assignment]
    x, ticks = batches(1)[0][0], count()
    advice = adagp.advise(
        model, sgd(own), lambda: model(x).mean(), seconds=0.5, compile=True, clock=lambda: next(ticks) / 500
    )
    assert advice.not_measured["torch.compile"] == "the model is compiled already"
    assert "before torch.compile" in advice.not_measured["activation checkpointing"]
    assert {option.name for option in advice.exact} >= {"channels-last", "fused optimizer"}


@pytest.mark.parametrize("name", ["foreach optimizer", "sources"])
def test_the_seconds_it_says_it_needs_are_enough(name: str) -> None:
    found = re.search(r"no time left for it, about (\d+) s would be enough", synthetic(0.02, 4).not_measured[name])
    assert found
    longer = synthetic(0.02, int(found[1])).not_measured
    assert not any("no time" in text for text in longer.values() if name == "sources")
    assert name not in longer


def test_the_plan_can_be_read_back() -> None:
    advice = synthetic(0.02, 100)
    assert advice.plan is not None
    plan = schedules.from_table(advice.plan.table, ["0", "5"])(0)
    assert {plan.source("0"), plan.source("5")} <= {"backprop", "topk"}


def test_result_as_json_and_as_text() -> None:
    advice = synthetic(0.02, 100)
    values = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    assert {"exact", "sources", "layers", "plan", "verdict"} <= values.keys()
    assert values["batch"]["phases"].keys() == {"forward", "backward", "optimizer", "loading"}
    lines = str(advice).splitlines()
    assert all(name in lines[0] for name in COLUMNS)
    assert lines[1].startswith("as it is")
    assert len(advice.rows()) == 1 + len(advice.options())


def test_options_are_sorted_by_worth_those_that_pay_first() -> None:
    options = synthetic(0.02, 400).options()
    keys = [(option.pays, option.worth) for option in options]
    assert keys == sorted(keys, reverse=True)


def test_progress_is_told() -> None:
    seen: list[tuple[float, str]] = []
    synthetic(0.02, 60, progress=lambda share, text: seen.append((share, text)))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.3
    assert shares[-1] <= 1.0
    assert {"exact options", "sources"} <= {text for _, text in seen}


def test_a_model_without_layers_is_advised_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LayerNorm(72), nn.ReLU())
    ticks = count()
    advice = adagp.advise(
        model, sgd(model), lambda: model(batches(1)[0][0]).mean(), seconds=0.5, clock=lambda: next(ticks) / 1000
    )
    assert advice.exact
    assert advice.sources == ()
    assert "no layer that adagp can cover" in advice.not_measured["sources"]
    assert "loading" not in advice.phases


def test_integer_inputs_and_language_models() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 11))
    tokens = torch.randint(0, 11, (4, 9))

    def closure() -> Tensor:
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    ticks = count()
    advice = adagp.advise(
        model, torch.optim.AdamW(model.parameters()), closure, seconds=0.5, clock=lambda: next(ticks) / 1000
    )
    assert [layer.name for layer in advice.layers] == ["1", "3"]
    assert {source.option.name for source in advice.sources} == {"topk", "sampled", "zero"}
    assert all(source.added_variance is None for source in advice.sources), "one batch has no spread"
    assert "give a loader" in advice.not_measured["mean"]


def test_a_source_that_serves_no_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopK, "refuse", lambda self, layer: "not here")
    model, ticks = pooled(), count()
    x, y = batches(1)[0]
    advice = adagp.advise(
        model, sgd(model), lambda: loss_of(model, x, y), seconds=0.5, clock=lambda: next(ticks) / 1000
    )
    assert advice.not_measured["topk"] == "it can serve no layer of this model"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compile_is_measured_where_asked() -> None:
    model = pooled()
    advice = adagp.advise(
        model, sgd(model), lambda batch: loss_of(model, *batch), loader=batches(2), seconds=2, compile=True
    )
    (found,) = [option for option in advice.exact if option.name.endswith("torch.compile")]
    assert found.start_seconds > 0.5
    assert found.speed_up.rounds >= 3, "its start is not counted"
    assert model._compiled_call_impl is None


@pytest.mark.slow
def test_no_false_promise_beside_a_busy_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that do nothing, on this machine, while others use all of it."""
    nothing = [exact.ExactOption(f"nothing {place}", (), nullcontext) for place in range(6)]
    monkeypatch.setattr(exact_study, "exact_options", lambda subject: nothing)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**6))"]) for _ in range(os.cpu_count() or 1)
    ]
    model = pooled()
    data = [(torch.randn(32, 2, 24, 24), torch.randint(0, 3, (32,))) for _ in range(4)]
    try:
        advice = adagp.advise(model, sgd(model), lambda batch: loss_of(model, *batch), loader=data, seconds=10)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert len(advice.exact) == 6
    assert not any(option.pays for option in advice.exact)
