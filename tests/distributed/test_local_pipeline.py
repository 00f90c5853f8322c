"""Pipelines with local losses: real processes give what the source `local` gives in one, and nothing waits."""

import copy
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.nn import functional

from adagp import AdaGP, Phase, Plan, schedules
from adagp.distributed import LostStageError, Pipeline, stage_of
from adagp.schedules.plan import LOCAL, Schedule
from adagp.sources import Local
from tests.ranks import on_ranks, on_ranks_one_killed

BATCH, STEPS = 16, 7
Batches = Sequence[tuple[Tensor, Tensor]]


def parts(count: int = 2) -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *[nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()) for _ in range(count - 2)],
        nn.Sequential(nn.Conv2d(6, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 5)),
    ]


def data() -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(0, 5, (BATCH,), generator=generator))
        for _ in range(STEPS)
    ]


def mixed() -> Schedule:
    """Backpropagation, local losses and remembered gradients in turn."""
    plans = [Plan(Phase.BP, "backprop"), LOCAL, LOCAL, Plan(Phase.GP, "mean")]
    return schedules.from_function(lambda step: plans[step % 4], ["backprop", "local", "mean", "skip"])


SCHEDULES: dict[str, Callable[[], Schedule]] = {"local": schedules.always_local, "mixed": mixed}


def attach(model: nn.Module, kind: str, local: Local) -> AdaGP:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return AdaGP(model, optimizer, SCHEDULES[kind](), None, sources={"local": local})


def build(
    rank: int, count: int, kind: str, microbatches: int, head: str = "dgl", state: Any = None
) -> tuple[Pipeline, AdaGP]:
    stage = stage_of(parts(count), rank, torch.empty(BATCH // microbatches, 3, 8, 8), torch.device("cpu"))
    gp = attach(stage.submod, kind, Local(head=head))
    if state is not None:
        gp.load_state_dict(state)
    return Pipeline(ScheduleGPipe(stage, microbatches, functional.cross_entropy), gp, gradients="local"), gp


def train(pipeline: Pipeline, rank: int, batches: Batches) -> list[float | None]:
    found = []
    for x, y in batches:
        loss = pipeline.step(*([x] if rank == 0 else []), target=y)
        found.append(None if loss is None else float(loss))
    pipeline.finish()
    return found


def numbers(gp: AdaGP) -> list[Any]:
    """Everything that training has changed on this rank: weights and heads."""
    heads = gp.sources["local"].heads.values()  # type: ignore[attr-defined]
    return [tensor.numpy().copy() for module in (gp.model, *heads) for tensor in module.state_dict().values()]


CASES = [("local", 1, "dgl"), ("local", 4, "dgl"), ("local", 2, "predsim"), ("mixed", 4, "dgl")]


def run_cases(rank: int, count: int) -> list[dict[str, Any]]:
    found = []
    for case in CASES:
        pipeline, gp = build(rank, count, *case)
        losses = train(pipeline, rank, data())
        found.append({"numbers": numbers(gp), "losses": losses, "counts": gp.counts()})
    return found


def run_alone(count: int, kind: str, microbatches: int, head: str) -> tuple[list[list[Tensor]], list[float]]:
    """The same parts in one process, by the source `local` and one AdaGP over all of them."""
    stages = parts(count)
    whole = nn.Sequential(*stages)
    cuts = [str(place) for place in range(count - 1)]
    local = Local(cuts, head=head, loss=lambda output, y: functional.cross_entropy(output, y) / microbatches)
    if head == "predsim":
        local = Local(cuts, head=head)
    gp = attach(whole, kind, local)
    losses = []
    for x, y in data():
        found = []
        with gp.batch() as batch:
            for image, label in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
                # Similarity matching has a loss of its own, which `loss` does not divide.
                divided = (lambda loss: (loss / microbatches).backward()) if head == "predsim" else None
                batch.expect_local(label, divided)
                loss = functional.cross_entropy(whole(image), label)
                found.append(float(loss.detach()))
                batch.backward(loss if divided else loss / microbatches, divided)
        gp.optimizer.step()
        gp.optimizer.zero_grad()
        losses.append(sum(found) / microbatches)
    heads = [[local.heads[cut]] if cut in local.heads else [] for cut in [*cuts, ""]]
    return [
        [tensor for module in (stage, *own) for tensor in module.state_dict().values()]
        for stage, own in zip(stages, heads, strict=True)
    ], losses


def check(count: int) -> None:
    ranks = on_ranks(count, run_cases)
    for index, case in enumerate(CASES):
        expected, losses = run_alone(count, *case)
        for rank in range(count):
            found = ranks[rank][index]
            assert len(found["numbers"]) == len(expected[rank])
            for own, other in zip(found["numbers"], expected[rank], strict=True):
                assert torch.equal(torch.from_numpy(own), other)  # bit for bit: these numbers divide exactly
            assert found["counts"]["local"] > 0
        assert ranks[-1][index]["losses"] == pytest.approx(losses, abs=1e-6)
        assert ranks[0][index]["losses"] == [None] * STEPS


def test_two_stages_give_bit_for_bit_what_local_losses_give_in_one_process() -> None:
    check(2)


@pytest.mark.slow
def test_three_stages_too() -> None:
    check(3)


class Kept:
    """Counts the tensors that graphs keep for a backward, and the most at one time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> list[Tensor]:
        kept = _Box([tensor])
        self.now += 1
        self.most = max(self.most, self.now)
        weakref.finalize(kept, self.drop)
        return kept

    def drop(self) -> None:
        self.now -= 1


class _Box(list[Tensor]):
    """A list that weak references can follow."""


def most_kept(rank: int, count: int) -> dict[str, int]:
    found = {}
    for name, kind, microbatches in (("local, 1", "local", 1), ("local, 4", "local", 4), ("gpipe, 4", "backprop", 4)):
        stage = stage_of(parts(), rank, torch.empty(BATCH // microbatches, 3, 8, 8), torch.device("cpu"))
        optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.05)
        schedule = schedules.always_local() if kind == "local" else schedules.always_backprop()
        torch_schedule = ScheduleGPipe(stage, microbatches, functional.cross_entropy)
        pipeline = Pipeline(torch_schedule, AdaGP(stage.submod, optimizer, schedule, None), gradients=kind)
        kept = Kept()
        with saved_tensors_hooks(kept.pack, lambda box: box[0]):
            train(pipeline, rank, data()[:2])
        found[name] = kept.most
    return found


def test_no_activation_is_kept_for_a_later_backward() -> None:
    for found in on_ranks(2, most_kept):
        assert found["local, 4"] == found["local, 1"] > 0
    assert found["gpipe, 4"] > 3 * found["local, 4"]  # the last stage has no head: nearly the same graph, four times


def resumed(rank: int, count: int) -> list[bool]:
    batches = data()
    pipeline, gp = build(rank, count, "local", 2)
    train(pipeline, rank, batches[:3])
    state, model, moments = (
        gp.state_dict(),
        copy.deepcopy(gp.model.state_dict()),
        copy.deepcopy(gp.optimizer.state_dict()),
    )
    train(pipeline, rank, batches[3:])
    expected = numbers(gp)
    found = []
    for loads_before in (True, False):  # a state can be loaded before the heads are built, and after
        pipeline, other = build(rank, count, "local", 2, state=state if loads_before else None)
        if not loads_before:
            train(pipeline, rank, batches[4:5])
            other.load_state_dict(state)
        other.model.load_state_dict(model)
        other.optimizer.load_state_dict(copy.deepcopy(moments))
        train(pipeline, rank, batches[3:])
        found.append(all((a == b).all() for a, b in zip(numbers(other), expected, strict=True)))
    fresh = attach(other.model, "local", Local()).state_dict()  # saved before a pipeline had built any head
    other.load_state_dict(fresh)
    train(pipeline, rank, batches[:1])
    return found


def test_a_resumed_pipeline_continues_bit_for_bit() -> None:
    assert on_ranks(2, resumed) == [[True, True]] * 2


# --- a rank dies


def dying(rank: int, count: int, kind: str, killed: int, folder: str) -> str:
    """A rank kills itself in the fifth batch; every rank has saved what it had after the third."""
    if kind == "local":
        pipeline, gp = build(rank, count, kind, 4)
    else:
        stage = stage_of(parts(), rank, torch.empty(BATCH // 4, 3, 8, 8), torch.device("cpu"))
        optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.05, momentum=0.9)
        schedule = {"gp": schedules.fixed(3, 1, source="mean")}.get(kind, schedules.always_backprop())
        gp = AdaGP(stage.submod, optimizer, schedule, None)
        torch_schedule: Any = {"1f1b": Schedule1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}.get(
            kind, ScheduleGPipe
        )
        own = [stage] if kind == "zero-bubble" else stage
        pipeline = Pipeline(torch_schedule(own, 4, functional.cross_entropy), gp)
    path = Path(folder) / f"{rank}.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        for part, state in zip((gp, gp.model, gp.optimizer), saved, strict=True):
            part.load_state_dict(state)  # type: ignore[attr-defined]
    try:
        for step in range(gp.step_index, 40):
            x, y = data()[step % STEPS]
            if step == 4 and rank == killed and not path.with_suffix(".again").exists():
                path.with_suffix(".again").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            pipeline.step(*([x] if rank == 0 else []), target=y)
            if step == 2 and not path.exists():
                torch.save([gp.state_dict(), gp.model.state_dict(), gp.optimizer.state_dict()], path)
            if step == 8 and path.with_suffix(".again").exists() | Path(folder, f"{killed}.again").exists():
                break
        pipeline.finish()
    except LostStageError as error:
        return str(error)
    return f"at step {gp.step_index}"


@pytest.mark.parametrize(
    ("kind", "killed"),
    [
        ("local", 1),
        *[
            pytest.param(kind, killed, marks=pytest.mark.slow)
            for kind, killed in (
                ("local", 0),
                ("gpipe", 0),
                ("gpipe", 1),
                ("1f1b", 0),
                ("1f1b", 1),
                ("zero-bubble", 0),
                ("zero-bubble", 1),
                ("gp", 0),
                ("gp", 1),
            )
        ],
    ],
)
def test_when_a_rank_dies_the_other_says_so_at_once_and_all_resume(kind: str, killed: int, tmp_path: Path) -> None:
    (message,), seconds = on_ranks_one_killed(2, killed, dying, kind, killed, str(tmp_path))
    assert f"stage {1 - killed} lost its connection to stage {killed} at step" in message
    assert "resume from the last checkpoint" in message
    assert seconds < 20
    assert on_ranks(2, dying, kind, killed, str(tmp_path)) == ["at step 9"] * 2


# --- what is refused


def refused(rank: int, count: int) -> dict[str, str]:
    del rank, count
    device, x, y = torch.device("cpu"), torch.randn(BATCH, 3, 8, 8), torch.zeros(BATCH, dtype=torch.long)
    whole = nn.Sequential(*parts())
    stage = stage_of([whole], 0, torch.empty(4, 3, 8, 8), device)
    schedule = ScheduleGPipe(stage, 4, functional.cross_entropy)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)

    def gp(plan: Any = None, local: Local | None = None) -> AdaGP:
        return AdaGP(whole, optimizer, plan or schedules.always_local(), None, sources={"local": local or Local()})

    mixture = schedules.from_function(lambda step: Plan(Phase.BP, "local", {"1.0": "zero"}), ["local", "zero"])
    backprop = AdaGP(whole, optimizer, schedules.always_backprop(), None)
    attempts: dict[str, Callable[[], Any]] = {
        "gradients": lambda: Pipeline(schedule, gp(), gradients="global"),
        "schedule": lambda: Pipeline(schedule, backprop, gradients="local"),
        "cuts": lambda: Pipeline(schedule, gp(local=Local(["0"])), gradients="local"),
        "undeclared": lambda: Pipeline(schedule, gp()).step(x, target=y),
        "target": lambda: Pipeline(schedule, gp(), gradients="local").step(x),
        "mixture": lambda: Pipeline(schedule, gp(mixture), gradients="local").step(x, target=y),
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            messages[name] = str(error)
    for kind in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble):
        stages = [stage_of(parts(), place, torch.empty(4, 3, 8, 8), device) for place in range(2)]
        several = kind(stages, 4, functional.cross_entropy)
        try:
            Pipeline(several, gp())
        except ValueError as error:
            messages[kind.__name__] = str(error)
    return messages


def test_what_local_pipelines_cannot_run_is_refused_with_the_remedy() -> None:
    (messages,) = on_ranks(1, refused)
    remedies = {
        "gradients": "choose backprop or local",
        "schedule": "schedules.always_local()",
        "cuts": "leave cuts out",
        "undeclared": "gradients='local'",
        "target": "on every rank",
        "mixture": "all 'local'",
        "ScheduleInterleaved1F1B": "give each rank one stage, with ScheduleGPipe",
        "ScheduleInterleavedZeroBubble": "ScheduleInterleavedZeroBubble has 2 stages on this rank",
        "ScheduleZBVZeroBubble": "ScheduleZBVZeroBubble has 2 stages on this rank",
    }
    assert messages.keys() == remedies.keys()
    for name, remedy in remedies.items():
        assert remedy in messages[name]
