"""Invariant 6 with real processes: all ranks hold identical parameters after any mix of phases."""

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, NonFiniteError, Phase, Plan, schedules
from tests.nets import batches, build, loss_of, sgd


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_ranks(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `work(rank, count, *args)` in real processes joined by gloo."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    processes = [context.Process(target=_entry, args=(work, rank, count, port, queue, args)) for rank in range(count)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    return [results[rank] for rank in range(count)]


def _entry(work: Callable[..., Any], rank: int, count: int, port: int, queue: Any, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    try:
        queue.put((rank, work(rank, count, *args)))
    finally:
        distributed.destroy_process_group()


def train(rank: int, count: int, predictor: str, immediate: bool, adaptive: bool) -> dict[str, Any]:
    model = DistributedDataParallel(build())
    schedule = schedules.adaptive(3, 1, patience=1) if adaptive else schedules.ladder(3, 1, 1)
    gp = AdaGP(model, sgd(model), schedule, predictor, immediate=immediate)
    phases = []
    for x, y in batches(14, seed=rank):
        phases.append(gp.next_plan().phase.value)
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    covered = [name for name, _ in gp.model.named_parameters()]
    return {
        "parameters": [p.detach().numpy() for p in model.parameters()],
        "phases": phases,
        "layers": sorted(gp.quality()),
        "counts": gp.counts(),
        "names": covered,
    }


@pytest.mark.parametrize(
    ("predictor", "immediate", "adaptive"),
    [("trusted", False, False), ("paper", True, False), ("trusted", False, True)],
)
def test_ranks_stay_identical_through_a_mix_of_phases(predictor: str, immediate: bool, adaptive: bool) -> None:
    one, two = on_ranks(2, train, predictor, immediate, adaptive)
    assert one["phases"] == two["phases"]
    if not adaptive:
        assert {"WARMUP", "GP", "BP"} == set(one["phases"])
        assert one["counts"]["predicted"] > 0
    assert one["layers"] == ["0", "3", "7", "9"]
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def not_finite(rank: int, count: int, phase: str) -> dict[str, Any]:
    """One rank's loss is NaN, in a GP batch of a method without a predictor or in a BP batch."""
    model = DistributedDataParallel(build())
    schedule = schedules.fixed(1, 0, source="zero") if phase == "GP" else schedules.always_backprop()
    gp = AdaGP(model, sgd(model), schedule, None)
    x, y = batches(1, seed=rank)[0]
    factors = iter([float("nan") if rank else 1.0, 1.0, 1.0])
    try:
        gp.step(lambda: loss_of(model, x, y) * next(factors))
    except NonFiniteError:
        return {"stopped": True, "counts": gp.counts()}
    return {"stopped": False, "counts": gp.counts()}


def test_ranks_agree_on_what_to_do_about_a_nan_on_one_of_them() -> None:
    for result in on_ranks(2, not_finite, "GP"):
        assert not result["stopped"]
        assert result["counts"] == {"fallback": 1, "backprop": 4}
    assert all(result["stopped"] for result in on_ranks(2, not_finite, "BP"))


def mix(rank: int, count: int) -> str:
    model = DistributedDataParallel(build())
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", {"0": "zero"}), None)
    x, y = batches(1)[0]
    try:
        gp.step(lambda: loss_of(model, x, y))
    except ValueError as error:
        return str(error)
    return ""


def test_a_plan_that_ddp_cannot_run_is_refused() -> None:
    assert all("DistributedDataParallel" in message for message in on_ranks(2, mix))


def draw(rank: int, count: int) -> dict[str, Any]:
    """Ranks with batches of unlike size; the standard deviation must still be the same on both."""
    model = DistributedDataParallel(build())
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="random"), None)
    for x, y in batches(4):
        part = slice(6) if rank else slice(2)
        gp.step(lambda x=x[part], y=y[part]: loss_of(model, x, y))
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "counts": gp.counts()}


def test_random_gradients_are_the_same_on_all_ranks() -> None:
    one, two = on_ranks(2, draw)
    assert one["counts"] == two["counts"] == {"random": 8, "backprop": 8}
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()
