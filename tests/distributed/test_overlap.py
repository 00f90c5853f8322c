"""The one message of a batch travels while the backward runs, and changes nothing by that."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, Phase, Plan, schedules
from adagp.distributed.lost import LostRankError
from adagp.predictors import FeatureSpec, Pooling
from benchmarks.distributed import own_messages
from tests.nets import batches, build, loss_of, sgd
from tests.ranks import on_leaving_ranks, on_ranks
from tests.watcher import Watcher

PLANS = [
    Plan(Phase.WARMUP, "backprop"),
    Plan(Phase.BP, "backprop"),
    Plan(Phase.GP, "predicted"),
    Plan(Phase.BP, "backprop", {"0": "predicted", "3": "random"}),
    Plan(Phase.BP, "backprop", {"7": "topk"}),
    Plan(Phase.GP, "mean"),
]
NAMES = ("backprop", "predicted", "random", "topk", "mean", "skip")


def attach(plans: list[Plan], predictor: Any = "trusted") -> tuple[nn.Module, AdaGP]:
    model = DistributedDataParallel(build(), find_unused_parameters=True, broadcast_buffers=False)
    schedule = schedules.from_function(lambda step: plans[step % len(plans)], NAMES)
    return model, AdaGP(model, sgd(model), schedule, predictor)


# --- the same weights


def train(rank: int, count: int, loop: str, overlaps: bool) -> dict[str, Any]:
    """Whole batches, or two micro-batches a batch, of which only the last is reduced, or both are."""
    model, gp = attach(PLANS)
    gp._setup.ranks.repeats_backward = not overlaps
    sent = []
    for x, y in batches(12, seed=rank):
        with own_messages() as messages:
            if loop == "whole":
                gp.step(lambda x=x, y=y: loss_of(model, x, y))
            else:
                with gp.batch() as batch:
                    if loop == "last reduced":
                        with model.no_sync():
                            batch.backward(loss_of(model, x[:5], y[:5]) / 2)
                    else:
                        batch.backward(loss_of(model, x[:5], y[:5]) / 2)
                    batch.backward(loss_of(model, x[5:], y[5:]) / 2)
                batch.step()
                gp.optimizer.zero_grad()
        sent.append(len(messages))
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "counts": gp.counts(), "sent": sent}


@pytest.mark.parametrize("loop", ["whole", "last reduced", "both reduced"])
def test_weights_are_bit_for_bit_those_of_a_message_after_the_backward(loop: str) -> None:
    early, late = on_ranks(2, train, loop, True), on_ranks(2, train, loop, False)
    assert set(NAMES) - {"skip"} <= early[0]["counts"].keys()
    for one, two in zip(early, late, strict=True):
        assert one["counts"] == two["counts"]
        assert all((a == b).all() for a, b in zip(one["parameters"], two["parameters"], strict=True))
    assert late[0]["sent"] == [1] * 12
    # Where a second backward is reduced, the first message was in vain; from then on there is one after the backward.
    assert early[0]["sent"] == ([2] if loop == "both reduced" else [1]) + [1] * 11


# --- the message is under way in the backward


@contextmanager
def started() -> Iterator[list[Any]]:
    """What waits for each message that `adagp` has started."""
    works: list[Any] = []
    original = distributed.all_reduce

    def all_reduce(tensor: Tensor, **options: Any) -> Any:
        works.append(original(tensor, **options))
        return works[-1]

    distributed.all_reduce = all_reduce
    try:
        yield works
    finally:
        distributed.all_reduce = original


NEEDS = FeatureSpec(output=Pooling(2), loss_grad=True)
CASES: dict[str, tuple[Plan, Any, bool]] = {
    "backprop": (PLANS[1], "trusted", True),
    "paper": (PLANS[1], "paper", True),
    "no predictor": (PLANS[1], None, True),
    "mixed": (PLANS[3], "trusted", True),
    "topk": (PLANS[4], "trusted", False),
    "loss_grad": (PLANS[1], NEEDS, False),
    "FSDP2": (PLANS[1], "trusted", False),
}


def look(rank: int, count: int, case: str) -> dict[str, list[int]]:
    """How many messages each backward found started, how many were over before it ended, and how many there were."""
    plan, predictor, _ = CASES[case]
    predictor = Watcher(predictor) if isinstance(predictor, FeatureSpec) else predictor
    if case == "FSDP2":
        model: nn.Module = build()
        fully_shard(model)
        gp = AdaGP(model, sgd(model), schedules.always_backprop(), predictor)
    else:
        model, gp = attach([plan], predictor)
    found: dict[str, list[int]] = {"started": [], "over": [], "sent": []}
    for x, y in batches(4, seed=rank):
        with started() as works:

            def in_backward(_: Tensor, works: list[Any] = works) -> None:
                found["started"].append(len(works))
                deadline = monotonic() + 30
                while works and not works[0].is_completed() and monotonic() < deadline:
                    sleep(0.001)
                found["over"].append(sum(work.is_completed() for work in works))

            def loss(x: Tensor = x, y: Tensor = y) -> Tensor:
                output = model(x)
                output.register_hook(in_backward)
                return nn.functional.cross_entropy(output, y)

            gp.step(loss)
        found["sent"].append(len(works))
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_message_travels_during_the_backward_where_all_of_it_is_known_before(case: str) -> None:
    overlaps = CASES[case][2]
    for found in on_ranks(2, look, case):
        assert found["started"] == found["over"] == [int(overlaps)] * 4
        if case not in ("loss_grad", "FSDP2"):  # a new shape takes two more; sharded rows are summed by themselves
            assert found["sent"] == [1] * 4


# --- one rank fails


class Fails(nn.Module):
    """Passes everything on, until it raises in its forward or in its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.where = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "forward":
            raise KeyError("the forward of one rank")
        return _Passes.apply(x, self.where)  # type: ignore[no-any-return]


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, where: str) -> Tensor:
        context.where = where
        return x.clone()

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Any:
        if context.where == "backward":
            raise KeyError("the backward of one rank")
        return grads[0], None


def fail(rank: int, count: int, where: str, stays: bool, folder: str) -> tuple[str, float]:
    """The last rank fails in the third batch; it stays until the other has noticed, or leaves. The error, the time."""
    noticed, fails = Path(folder, "noticed"), Fails()
    network = nn.Sequential(*build()[:-1], fails, build()[-1])
    group = distributed.new_group(timeout=timedelta(seconds=6)) if stays else None
    model = DistributedDataParallel(network, process_group=group)
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    start = monotonic()
    try:
        for step, (x, y) in enumerate(batches(5, seed=rank)):
            if step == 2 and rank == count - 1:
                fails.where = where
            start = monotonic()
            gp.step(lambda x=x, y=y: loss_of(model, x, y))
    except (LostRankError, KeyError) as error:
        if isinstance(error, LostRankError):
            noticed.touch()
        while stays and not noticed.exists() and monotonic() < start + 60:
            sleep(0.05)
        return f"{type(error).__name__}: {error}", monotonic() - start
    return "", 0.0


@pytest.mark.parametrize(
    ("where", "stays"),
    [
        ("forward", True),
        ("backward", False),
        pytest.param("forward", False, marks=pytest.mark.slow),
        pytest.param("backward", True, marks=pytest.mark.slow),
    ],
)
def test_when_one_rank_fails_the_other_does_not_hang(where: str, stays: bool, tmp_path: Path) -> None:
    (one, seconds), (two, _) = on_leaving_ranks(2, fail, where, stays, str(tmp_path))
    assert two == f"KeyError: 'the {where} of one rank'"
    assert one.startswith("LostRankError: another rank did not answer at step 2 (BP)")
    assert "start all ranks again" in one
    assert seconds < 20
