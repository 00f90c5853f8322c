import io
import re
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, predictors, schedules, sources
from tests.nets import batches, build, equal_parameters, loss_of, sgd
from tests.ranks import on_ranks

SCRIPT = Path(__file__).parents[2] / "examples" / "own_source_and_predictor.py"


def load() -> ModuleType:
    """The script as a module; what it registers must not be there for the tests after it."""
    spec = spec_from_file_location("own_source_and_predictor", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forget() -> None:
    sources.unregister("fading")
    predictors.unregister("backward-map")


@pytest.fixture
def _registered() -> Iterator[None]:
    load()
    yield
    forget()


def attach(model: nn.Module, source: str, predictor: str | None) -> AdaGP:
    return AdaGP(model, sgd(model), schedules.fixed(2, 1, source=source), predictor)


def test_own_source_and_predictor_are_used(run_example: Callable[..., str]) -> None:
    fading, mapped, *layers, known = run_example("own_source_and_predictor.py").splitlines()
    # 60 batches of 2 layers, two GP batches and then one BP batch; nothing is known before the first BP batch.
    assert fading.startswith("source 'fading', predictor None: {'skip': 4, 'backprop': 40, 'fading': 76}")
    assert mapped.startswith(
        "source 'predicted', predictor 'backward-map': {'skip': 4, 'backprop': 40, 'predicted': 76}"
    )
    assert all(float(line.rsplit(" ", 1)[1]) < 0.9 for line in (fading, mapped))  # three classes: chance gives 1.10
    cosines = [float(re.findall(r"gradient (-?[\d.]+)$", line)[0]) for line in layers]
    assert len(cosines) == 2
    assert min(cosines) > 0.5
    assert known == "known predictors: trusted, paper, literal, label-aware, backward-map"


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize(("source", "predictor"), [("fading", None), ("predicted", "backward-map")])
@pytest.mark.parametrize("cut", [4, 5, 6])
def test_a_resumed_run_is_bit_identical(source: str, predictor: str | None, cut: int) -> None:
    data = batches(9)
    whole, first, second = build(), build(), build()
    for model, part in ((whole, data), (first, data[:cut])):
        gp = attach(model, source, predictor)
        for x, y in part:
            gp.step(lambda x=x, y=y, model=model: loss_of(model, x, y))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": gp.optimizer.state_dict(), "gp": gp.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = attach(second, source, predictor)
    second.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.load_state_dict(state["gp"])
    for x, y in data[cut:]:
        resumed.step(lambda x=x, y=y: loss_of(second, x, y))
    assert equal_parameters(whole, second)


def train(rank: int, count: int, source: str, predictor: str | None) -> tuple[list[list[float]], dict[str, int]]:
    load()
    try:
        model = DistributedDataParallel(build())
        gp = attach(model, source, predictor)
        for x, y in batches(9, seed=rank):
            gp.step(lambda x=x, y=y: loss_of(model, x, y))
    finally:
        forget()
    return [parameter.flatten().tolist() for parameter in model.parameters()], gp.counts()


@pytest.mark.parametrize(("source", "predictor"), [("fading", None), ("predicted", "backward-map")])
def test_ranks_stay_identical(source: str, predictor: str | None) -> None:
    (one, counts), (two, _) = on_ranks(2, train, source, predictor)
    assert counts[source] > 0
    assert one == two
