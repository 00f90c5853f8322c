"""Pipelines with real processes: what two stages give is what one process gives, in BP and in GP."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleavedZeroBubble
from torch.nn import functional

from adagp import AdaGP, NonFiniteError, Phase, Plan, coarse, schedules
from adagp.distributed import Pipeline, stage_of
from tests.ranks import logged, on_leaving_ranks, on_ranks

MICRO_BATCHES, BATCH, STEPS = 4, 16, 9


def parts() -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)),
        nn.Sequential(nn.ReLU(), nn.Conv2d(6, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 5)),
    ]


def data() -> list[tuple[Tensor, Tensor]]:
    """Nearly the same batch again and again, so that gradients agree and are trusted."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(0, 5, (BATCH,), generator=generator)
    return [(x + 0.1 * torch.randn(x.shape, generator=generator), y) for _ in range(STEPS)]


def engine(part: nn.Module, predictor: str | None) -> AdaGP:
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)
    source = "predicted" if predictor else "mean"
    return AdaGP(part, optimizer, schedules.ladder(3, 1, 1, rungs=((2, 1),), source=source), predictor)


def run_stage(rank: int, count: int, kind: str, predictor: str | None) -> dict[str, Any]:
    stage = stage_of(parts(), rank, torch.empty(BATCH // MICRO_BATCHES, 3, 8, 8), torch.device("cpu"))
    part = stage.submod
    gp = engine(part, predictor)
    kinds = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}
    stages = [stage] if kind == "zero-bubble" else stage
    pipeline = Pipeline(kinds[kind](stages, MICRO_BATCHES, functional.cross_entropy), gp)
    phases, losses = [], []
    for x, y in data():
        phases.append(gp.next_plan().phase.value)
        loss = pipeline.step(x, target=y) if rank == 0 else pipeline.step(target=y)
        losses.append(None if loss is None else float(loss))
    pipeline.finish()
    return {
        "state": [t.numpy() for t in part.state_dict().values()],
        "phases": phases,
        "losses": losses,
        "counts": gp.counts(),
    }


def run_alone(predictor: str | None) -> dict[str, Any]:
    """The same two stages in one process, micro-batch by micro-batch, by the engine's own means."""
    both = parts()
    engines = [engine(part, predictor) for part in both]
    whole = nn.Sequential(*both)
    losses = []
    for x, y in data():
        pairs = list(zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True))
        found = []
        with engines[0].batch() as first, engines[1].batch() as second:
            for image, label in pairs:
                loss = functional.cross_entropy(whole(image), label)
                found.append(float(loss.detach()))
                first.backward(loss / MICRO_BATCHES)
                second.ran_backward()
        for gp in engines:
            gp.optimizer.step()
            gp.optimizer.zero_grad()
        losses.append(sum(found) / MICRO_BATCHES)
    return {"states": [list(part.state_dict().values()) for part in both], "losses": losses}


CASES = [
    ("gpipe", "trusted"),
    ("1f1b", "paper"),
    ("1f1b", None),
    ("zero-bubble", "trusted"),
]


def run_cases(rank: int, count: int) -> tuple[list[dict[str, Any]], list[str]]:
    with logged() as lines:
        return [run_stage(rank, count, *case) for case in CASES], lines


def test_two_stages_give_what_one_process_gives() -> None:
    both, lines = zip(*on_ranks(2, run_cases), strict=True)
    assert lines == ([], [])  # no warning: these ranks have nothing to share, and that is right
    for index, (_, predictor) in enumerate(CASES):
        alone, found = run_alone(predictor), [cases[index] for cases in both]
        for stage, expected in zip(found, alone["states"], strict=True):
            assert stage["counts"]["predicted" if predictor else "mean"] > 0
            assert set(stage["phases"]) == {"WARMUP", "BP", "GP"}
            assert len(stage["state"]) == len(expected)
            for a, b in zip(stage["state"], expected, strict=True):
                assert torch.allclose(torch.from_numpy(a), b, atol=1e-5)
        assert found[0]["losses"] == [None] * STEPS
        assert found[1]["losses"] == pytest.approx(alone["losses"], abs=1e-5)


def pooled() -> list[nn.Sequential]:
    """Parts that take images of any size."""
    return [parts()[0], nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(54, 5))]


def coarse_engine(part: nn.Module) -> AdaGP:
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)
    return AdaGP(part, optimizer, schedules.progressive(STEPS), None)


def coarse_pipeline(gp: AdaGP, rank: int) -> Pipeline:
    def schedule(pixels: int) -> Schedule1F1B:
        both = [*pooled()[:rank], gp.model, *pooled()[rank + 1 :]]
        stage = stage_of(both, rank, torch.empty(BATCH // MICRO_BATCHES, 3, pixels, pixels), torch.device("cpu"))
        return Schedule1F1B(stage, MICRO_BATCHES, functional.cross_entropy)

    return Pipeline(schedule(8), gp, coarse={0.5: schedule(4)})


def run_coarse_stage(rank: int, count: int) -> dict[str, Any]:
    gp = coarse_engine(pooled()[rank])
    pipeline = coarse_pipeline(gp, rank)
    scales, message = [], ""
    for x, y in data():
        scales.append(pipeline.scale)
        smaller = coarse.images(x, pipeline.scale)
        if rank == 0 and pipeline.scale < 1 and not message:
            try:
                pipeline.step(x, target=y)
            except ValueError as error:
                message = str(error)
        pipeline.step(smaller) if rank == 0 else pipeline.step(target=y)
    pipeline.finish()
    return {"state": [t.numpy() for t in gp.model.state_dict().values()], "scales": scales, "message": message}


def test_coarse_batches_in_a_pipeline_are_those_of_one_process() -> None:
    found = on_ranks(2, run_coarse_stage)
    whole = nn.Sequential(*pooled())
    gp = coarse_engine(whole)
    for x, y in data():
        with gp.batch() as batch:
            smaller = coarse.images(x, batch.scale)
            for image, label in zip(smaller.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
                batch.backward(functional.cross_entropy(whole(image), label) / MICRO_BATCHES)
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    for part, stage in zip(whole, found, strict=True):
        assert stage["scales"] == [0.5] * 5 + [1.0] * 4
        for a, b in zip(stage["state"], part.state_dict().values(), strict=True):
            assert torch.allclose(torch.from_numpy(a), b, atol=1e-5)
    expected = "step 0 has samples of 3x8x8, and its stage was made for 3x4x4: give samples at pipeline.scale"
    assert expected in found[0]["message"]


def refused(rank: int, count: int) -> dict[str, str]:
    part, device, x = parts()[0], torch.device("cpu"), torch.empty(4, 3, 8, 8)
    gp = engine(part, None)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    stage, other = (stage_of([one], 0, x, device) for one in (part, parts()[0]))
    schedule = ScheduleGPipe(stage, 4, nn.functional.mse_loss)
    mixing = AdaGP(part, optimizer, lambda step: Plan(Phase.BP, "backprop", {"3": "zero"}), None)
    at_once = AdaGP(part, optimizer, schedules.fixed(1, 1), immediate=True)
    small = AdaGP(part, optimizer, schedules.progressive(4), None)
    sometimes = AdaGP(part, optimizer, lambda step: Plan(Phase.BP, "backprop", scale=0.5), None)
    attempts: dict[str, Callable[[], Any]] = {
        "coarse": lambda: Pipeline(schedule, small),
        "other scale": lambda: Pipeline(schedule, small, coarse={0.75: schedule}),
        "function": lambda: Pipeline(schedule, sometimes).step(torch.randn(16, 3, 8, 8)),
        "growing": lambda: Pipeline(schedule, AdaGP(part, optimizer, schedules.growing(40), None)),
        "small module": lambda: Pipeline(schedule, gp, coarse={0.5: ScheduleGPipe(other, 4, nn.functional.mse_loss)}),
        "shapes": lambda: Pipeline(ScheduleGPipe(PipelineStage(part, 0, 1, device), 4, nn.functional.mse_loss), gp),
        "loss": lambda: Pipeline(ScheduleGPipe(stage, 4), gp),
        "module": lambda: Pipeline(schedule, engine(parts()[0], None)),
        "adaptive": lambda: Pipeline(schedule, AdaGP(part, optimizer, schedules.adaptive(3))),
        "mixed": lambda: Pipeline(schedule, mixing).step(torch.randn(16, 3, 8, 8), target=torch.randn(16, 6, 8, 8)),
        "immediate": lambda: Pipeline(schedule, at_once),
        "tensor": lambda: stage_of([nn.LSTM(8, 8)], 0, torch.empty(4, 8), device),
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, TypeError) as error:
            messages[name] = str(error)
    return messages


def test_what_a_pipeline_cannot_run_is_refused_with_the_remedy() -> None:
    (messages,) = on_ranks(1, refused)
    remedies = {
        "shapes": "stage_of",
        "loss": "loss_fn",
        "module": "the stage's own module",
        "adaptive": "schedules.ladder",
        "mixed": "all 'local' or a GP batch",
        "immediate": "not for pipelines",
        "tensor": "cut the model elsewhere",
        "coarse": "give Pipeline coarse={0.5: schedule}",
        "other scale": "give Pipeline coarse={0.5: schedule}",
        "function": "give Pipeline coarse={0.5: schedule}",
        "growing": "use schedules.progressive",
        "small module": "the stage's own module",
    }
    assert messages.keys() == remedies.keys()
    for name, remedy in remedies.items():
        assert remedy in messages[name]


def broken(rank: int, count: int, where: str) -> str:
    """One rank sees a number that is not finite: it stops and says where; nobody waits for ever."""
    stage = stage_of(parts(), rank, torch.empty(4, 3, 8, 8), torch.device("cpu"))
    gp = engine(stage.submod, "paper")
    pipeline = Pipeline(ScheduleGPipe(stage, MICRO_BATCHES, functional.cross_entropy), gp)
    try:
        for step, (x, y) in enumerate(data()):
            if where == "loss" and rank == 1 and step == 2:
                with torch.no_grad():
                    stage.submod[3].weight.fill_(float("nan"))
            if where == "prediction" and rank == 1 and step == 3:
                gp.predictor._last.data.fill_(float("nan"))  # type: ignore[union-attr]
            pipeline.step(x, target=y) if rank == 0 else pipeline.step(target=y)
            if step == 3:
                pipeline.finish()  # or the other rank may lose the connection before it has everything
                return "went on"
    except NonFiniteError as error:
        return str(error)
    except RuntimeError:
        return "the other rank is gone"
    return "went on"


@pytest.mark.parametrize(("where", "text"), [("loss", "loss is not finite at step 2"), ("prediction", "of stage 1")])
def test_a_number_that_is_not_finite_stops_the_rank_that_sees_it(where: str, text: str) -> None:
    first, second = on_leaving_ranks(2, broken, where)
    assert text in second
    assert "not finite" not in first


def test_the_pipeline_of_the_docs_runs_under_torchrun(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    script = tmp_path / "pipeline.py"
    (code,) = (
        part.split("```")[0] for part in page.split("```python\n")[1:] if "ScheduleGPipe" in part.split("```")[0]
    )
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 12
