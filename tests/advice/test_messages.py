"""Real ranks joined by gloo: they stay together, and say what they send."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adagp
from adagp.advice.estimate import Estimate
from adagp.advice.messages import MessagesFinding, own_clock, same_on_all, shared_clock
from adagp.advice.result import Advice
from adagp.advice.verdict import with_verdict
from tests.nets import batches, loss_of, sgd
from tests.ranks import on_ranks

WEIGHTS = 4 * 2 * 9 + 4 + 4 + 4 + 3 * 4 + 3
BUFFER_BYTES = 4 * 8 + 8  # mean and variance, and an int64 that counts batches


def advised(rank: int, count: int, finds_unused: bool, hidden: Sequence[nn.Module] = ()) -> tuple[dict[str, Any], bool]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *hidden,
        nn.Linear(4, 3),
    )
    wrapped = DistributedDataParallel(model, find_unused_parameters=finds_unused)
    before = copy.deepcopy(model.state_dict())
    loader = batches(6, seed=rank)
    ticks = iter(range(10_000)) if rank == 0 else iter(range(0, 30_000, 3))  # one clock is faster, all follow the first
    advice = adagp.advise(
        wrapped,
        sgd(wrapped),
        lambda batch: loss_of(wrapped, *batch),
        loader=loader,
        seconds=1,
        clock=lambda: next(ticks) / 250,
    )
    kept = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    return advice.to_dict(), kept


@pytest.mark.parametrize("finds_unused", [False, True])
def test_ranks_stay_together_and_say_what_they_send(finds_unused: bool) -> None:
    (first, kept), (second, also_kept) = on_ranks(2, advised, finds_unused)
    assert kept
    assert also_kept
    messages = first["messages"]
    assert (messages["ranks"], messages["sent_bytes"]) == (2, 4 * WEIGHTS + BUFFER_BYTES)
    assert messages["without"]["rounds"] >= 3
    assert any(line.startswith("Messages of 2 ranks: 0.00 MB a batch from each") for line in first["verdict"])
    for part in ("exact", "plan", "not_measured"):
        assert _timeless(first[part]) == _timeless(second[part])
    sources = {source["name"]: source for source in first["sources"]}
    gradients = 4 * WEIGHTS
    assert sources["coarse"]["sent_bytes"] > gradients + BUFFER_BYTES, "and which layers ran"
    assert BUFFER_BYTES < sources["last"]["sent_bytes"] < gradients, "a batch without a backward sends no gradients"
    assert sources["predicted"]["sent_bytes"] == sources["last"]["sent_bytes"], "means alone need no features"
    assert ("topk" in sources) is finds_unused
    assert ("find_unused_parameters=True" in first["not_measured"].get("topk", "")) is not finds_unused


def test_a_model_with_the_predictors_network_sends_features() -> None:
    wide = [nn.Linear(4, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 4)]
    (first, _), _ = on_ranks(2, advised, False, wide)
    sources = {source["name"]: source for source in first["sources"]}
    assert sources["predicted"]["sent_bytes"] > sources["last"]["sent_bytes"], "the features"


def _timeless(value: Any) -> Any:
    """Without peak memory, which each rank measures for itself."""
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if name != "peak_bytes"}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def test_a_single_process_keeps_its_clock() -> None:
    clock = shared_clock(nn.Linear(1, 1), lambda: 3.0)
    assert (clock(), own_clock(clock)(), same_on_all(clock, 5)) == (3.0, 3.0, 5)


def said(without: Estimate) -> str:
    messages = MessagesFinding(4, 2_500_000, 0.02, without)
    advice = Advice(0.1, {"forward": 0.1}, 0, (), None, (), (), None, {}, 60.0, messages=messages)
    return with_verdict(advice).verdict[2]


def test_messages_in_words() -> None:
    assert said(Estimate(1.25, 1.11, 1.33, 30, 60.0)) == (
        "Messages of 4 ranks: 2.50 MB a batch from each, 20.0 ms or 10 to 25 % of its time."
    )
    assert said(Estimate(1.01, 0.97, 1.05, 30, 60.0)).endswith(
        "; their time is not seen, 1.01 (0.97 to 1.05) x the speed without them."
    )
    assert said(Estimate(1.4, 0.0, float("inf"), 1, 60.0)).endswith(
        "; there was no time to measure how long they take."
    )
