"""The page's table of sources and engines: each cell is tried, so that the page cannot be false."""

import re
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, Phase, Plan, schedules
from adagp.distributed import Pipeline, stage_of
from adagp.layers.sharding import is_distributed
from adagp.schedules.plan import BACKPROP, LOCAL
from adagp.schedules.sources import names, spec
from adagp.sources import Local, Sampled, Source
from tests.ranks import on_ranks

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
STEPS, BATCH, MICRO_BATCHES = 8, 8, 2


def table() -> dict[tuple[str, str], str]:
    """What the page says of each source under each engine."""
    section = PAGE.read_text(encoding="utf-8").split("## Which sources work where?\n")[1].split("\n## ")[0]
    head, _, *lines = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in section.splitlines() if line.startswith("|")
    )
    return {
        (line[0].strip("`"), engine): cell for line in lines for engine, cell in zip(head[1:], line[1:], strict=True)
    }


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()),
        nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5)),
    ]


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(0, 5, (BATCH,), generator=generator))
        for _ in range(STEPS)
    ]


def plans(source: str, in_pipeline: bool) -> list[Plan]:
    """Backpropagation, the source in all layers, and beside backpropagation where an engine has mixed batches."""
    if source == "local":
        return [BACKPROP, LOCAL]
    whole = Plan(Phase.BP if spec(source).needs_backward else Phase.GP, source)
    mixed = [Plan(Phase.BP, "backprop", {name: source}) for name in ("0.2", "1.0")]
    return [BACKPROP, whole, *([] if in_pipeline else mixed)]


def head(activation: torch.Size, output: torch.Size) -> nn.Module:
    """A head without batch norm, which would see each rank's samples alone."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * activation[0], output[0]))


def attach(model: nn.Module, source: str, in_pipeline: bool = False, local: Local | None = None) -> AdaGP:
    given = plans(source, in_pipeline)
    schedule = schedules.from_function(lambda step: given[step % len(given)], {"backprop", source, "skip"})
    own: dict[str, Source] = {"sampled": Sampled(rate=1.0), "local": local or Local(["0"], head=head)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    predictor = "trusted" if source == "predicted" else None
    return AdaGP(model, optimizer, schedule, predictor, sources={source: own[source]} if source in own else {})


def weights(model: nn.Module) -> list[Any]:
    held = [part.full_tensor() if is_distributed(part) else part for part in model.parameters()]
    return [part.detach().numpy() for part in held]


# --- the engines


def data_parallel(rank: int, count: int, source: str, engine: str) -> dict[str, Any]:
    """Each rank has its part of every batch."""
    network = nn.Sequential(*parts())
    model: nn.Module = network
    if engine == "FSDP2":
        for part in network.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                fully_shard(part)
        fully_shard(network)
    else:
        model = DistributedDataParallel(network, find_unused_parameters=True)
    gp = attach(model, source)
    for x, y in data():
        own, labels = x.chunk(count)[rank], y.chunk(count)[rank]
        target = labels if source == "local" else None
        gp.step(lambda own=own, labels=labels: cross_entropy(model(own), labels), target=target)
    return {"weights": weights(network), "count": gp.counts()[source]}


def pipeline(rank: int, count: int, source: str, engine: str) -> dict[str, Any]:
    """Each rank has a stage."""
    stage = stage_of(parts(), rank, torch.empty(BATCH // MICRO_BATCHES, 3, 8, 8), torch.device("cpu"))
    gp = attach(stage.submod, source, in_pipeline=True, local=Local(head=head))
    gradients = "local" if source == "local" else "backprop"
    engine_of_torch = Pipeline(ScheduleGPipe(stage, MICRO_BATCHES, cross_entropy), gp, gradients)
    for x, y in data():
        engine_of_torch.step(*([x] if rank == 0 else []), target=y)
    engine_of_torch.finish()
    return {"weights": weights(stage.submod), "count": gp.counts()[source]}


def compiled(rank: int, count: int, source: str, engine: str) -> dict[str, Any]:
    """One process; only the capture of torch.compile is tried, not the code that it makes."""
    torch.compiler.reset()  # or the code of the last source's network, which is equal, would be taken without its hooks
    network = nn.Sequential(*parts())
    gp = attach(network, source)
    model = torch.compile(network, backend="eager")
    for x, y in data():
        gp.step(lambda x=x, y=y: cross_entropy(model(x), y), target=y if source == "local" else None)
    return {"weights": weights(network), "count": gp.counts()[source]}


ENGINES = {"DDP": data_parallel, "FSDP2": data_parallel, "pipeline": pipeline, "compile": compiled}


def attempt(rank: int, count: int, source: str, engine: str) -> dict[str, Any]:
    """What a source gives, or the error."""
    try:
        return ENGINES[engine](rank, count, source, engine)
    except ValueError as error:
        return {"error": str(error)}


def attempt_all(rank: int, count: int, engine: str) -> dict[str, dict[str, Any]]:
    return {source: attempt(rank, count, source, engine) for source in sorted(names())}


@cache
def outcomes(engine: str) -> list[dict[str, dict[str, Any]]]:
    return on_ranks(2, attempt_all, engine)


# --- one process


def alone(source: str) -> list[Any]:
    """Whole batches."""
    model = nn.Sequential(*parts())
    gp = attach(model, source)
    for x, y in data():
        gp.step(lambda x=x, y=y: cross_entropy(model(x), y), target=y if source == "local" else None)
    return weights(model)


def alone_in_stages(source: str) -> list[Any]:
    """Micro-batch by micro-batch, with an AdaGP for each stage; local losses need one over both."""
    both = parts()
    whole = nn.Sequential(*both)
    engines = [attach(part, source, in_pipeline=True) for part in ([whole] if source == "local" else both)]
    for x, y in data():
        with ExitStack() as stack:
            opened = [stack.enter_context(gp.batch()) for gp in engines]
            for image, labels in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
                if source == "local":
                    opened[0].expect_local(labels, share=1 / MICRO_BATCHES)
                opened[-1].backward(cross_entropy(whole(image), labels) / MICRO_BATCHES)
                for batch in opened[:-1]:
                    batch.ran_forward()
                    batch.ran_backward()
        for gp in engines:
            gp.optimizer.step()
            gp.optimizer.zero_grad()
    return weights(whole)


# --- the table


def test_the_table_has_every_source_and_engine() -> None:
    assert table().keys() == {(source, engine) for source in names() for engine in ENGINES}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own, at each break of its graph
@pytest.mark.parametrize(("source", "engine"), [(source, engine) for engine in ENGINES for source in sorted(names())])
def test_a_source_works_or_is_refused_as_the_page_says(source: str, engine: str) -> None:
    cell = table()[source, engine]
    ranks = [attempt(0, 1, source, engine)] if engine == "compile" else [found[source] for found in outcomes(engine)]
    refused = re.fullmatch("refused: (.*)", cell)
    if refused:
        assert all(refused[1] in found.get("error", "") for found in ranks), ranks
        return
    assert cell == ("works in GP" if engine == "pipeline" and not spec(source).needs_backward else "works")
    assert not [found["error"] for found in ranks if "error" in found]
    assert all(found["count"] > 0 for found in ranks)
    if engine == "pipeline":  # the stages' weights one after the other are the network's
        given, expected = [[*ranks[0]["weights"], *ranks[1]["weights"]]], alone_in_stages(source)
    else:
        given, expected = [found["weights"] for found in ranks], alone(source)
    for own in given:
        for mine, exact in zip(own, expected, strict=True):
            assert abs(mine - exact).max() < 1e-5
