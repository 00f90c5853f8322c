"""Checkpoints with a true checksum and anything inside: refused by name, or the run goes on; never a traceback."""

import copy
import hashlib
import io
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.nets  # noqa: F401  # registers "with-network"
from adagp import predictors, sources
from adagp.data import DataSet
from adagp.predictors import FeatureSpec, Pooling
from adagp.schedules import SourceSpec
from adagp.sources import Last
from adagp.training import CheckpointError, Recipe, Run, RunFolder, TrainingError
from adagp.training.run import checkpoint
from tests.watcher import Watcher

METHODS = ("adaptive", "adagp", "mean", "random", "bp")


def trained(recipe: Recipe, digits: DataSet) -> dict[str, Any]:
    """The state of a run in the middle of its second epoch."""
    run = Run(recipe, digits)
    for _ in range(20):
        if run.epoch_complete:
            run.finish_epoch()
        run.step()
    return run.state_dict()


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a state, containers among them."""
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, inner in items:
        yield from leaves(inner, (*place, key))


def changed(state: Any, place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The state with one value replaced; `Gone` takes it away."""
    key, *rest = place
    inner = change(state[key]) if not rest else changed(state[key], tuple(rest), change)
    if isinstance(state, dict):
        return {name: value for name, value in (state | {key: inner}).items() if value is not Gone}
    items = [inner if index == key else value for index, value in enumerate(state)]
    return type(state)(value for value in items if value is not Gone)


class Gone:
    """Takes a value away."""


CHANGES: dict[str, Callable[[Any], Any]] = {
    "gone": lambda value: Gone,
    "text": lambda value: "something",
    "none": lambda value: None,
    "nan": lambda value: float("nan"),
    "negative": lambda value: -7,
    "huge": lambda value: 2**70,
    "list": lambda value: [],
    "dict": lambda value: {"key": 1},
    "tensor": lambda value: torch.zeros(3, 2),
    "longer": lambda value: torch.cat([value, value]) if isinstance(value, torch.Tensor) and value.dim() else 10**6,
    "double": lambda value: value.double() if isinstance(value, torch.Tensor) else True,
    "more": lambda value: value | {"foreign": 1} if isinstance(value, dict) else [value],
}


def survives(recipe: Recipe, digits: DataSet, state: dict[str, Any]) -> str | None:
    """Why the state is refused; None where the run goes on from it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    run = Run(recipe, digits)
    try:
        run.load_state_dict(loaded)
    except CheckpointError as error:
        return str(error)
    try:
        while not run.finished and run.step_index < 28:
            if run.epoch_complete:
                run.finish_epoch()
            else:
                run.step()
        run.state_dict()
    except TrainingError:
        pass  # weights or moments may be numbers that lead nowhere
    return None


@pytest.mark.parametrize("method", METHODS)
def test_whatever_is_changed_is_refused_or_harmless(recipe: Recipe, digits: DataSet, method: str) -> None:
    recipe = recipe.replace(method=method, optimizer="adam" if method == "mean" else "sgd")
    state = trained(recipe, digits)
    assert survives(recipe, digits, copy.deepcopy(state)) is None
    draw = random.Random(method)
    cases = [(place, name) for place in leaves(state) for name in CHANGES if place[0] != "recipe"]
    for place, name in draw.sample(cases, 60):
        problem = survives(recipe, digits, changed(state, place, CHANGES[name]))
        assert problem is None or (len(problem) < 400 and "\n" not in problem), problem


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (("model",), "gone", "lacks 'model'"),
        (
            ("model", "features.0.weight"),
            "double",
            r"model\.features\.0\.weight is float64\[16, 1, 3, 3\], not float32",
        ),
        (("model", "features.0.weight"), "longer", r"features\.0\.weight is float32\[32, 1, 3, 3\]"),
        (("gp", "progress", "step_index"), "nan", r"gp\.progress\.step_index is a float, not a int"),
        (("gp", "progress", "step_index"), "negative", r"gp\.progress\.step_index = -7 is negative"),
        (("gp", "progress", "step_index"), "longer", "it is at batch 1000000"),
        (("gp", "predictor"), "more", "gp.predictor has a foreign 'foreign'"),
        (("records",), "list", "it is at batch 20, but counts"),
        (("random", "states", 0), "tensor", r"random\.states"),
        (("optimizer", "state", 0, "momentum_buffer"), "longer", r"state\.0\.momentum_buffer is float32\[32"),
        (("gp", "predictor", "mapes"), "gone", r"predictor lacks 'mapes'"),
        (("gp", "predictor", "network", "adam", "mean"), "longer", r"network\.adam\.mean is float32"),
        (("gp", "predictor", "network", "adam", "mean"), "gone", r"network\.adam lacks 'mean'"),
        (("gp", "predictor", "network", "adam", "steps"), "negative", r"network\.adam\.steps = -7 is negative"),
        (
            ("optimizer", "param_groups", 0, "weight_decay"),
            "gone",
            r"optimizer\.param_groups\[0\] lacks 'weight_decay'",
        ),
        (("optimizer", "param_groups", 0, "params", 0), "tensor", r"param_groups\[0\]\.params is not \[0, 1"),
        (("digest",), "gone", "another run"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(
    recipe: Recipe, digits: DataSet, place: tuple[Any, ...], change: str, message: str
) -> None:
    if "network" in place:
        recipe = recipe.replace(method="adagp", predictor="with-network")
    state = changed(trained(recipe, digits), place, CHANGES[change])
    with pytest.raises(CheckpointError, match=rf"{message}.*(restore|resume with)"):
        Run(recipe, digits).load_state_dict(state)


def test_random_numbers_from_nowhere_are_refused(recipe: Recipe, digits: DataSet) -> None:
    state = trained(recipe, digits)
    state["random"]["states"][0].fill_(255)
    with pytest.raises(CheckpointError, match="restore"):
        Run(recipe, digits).load_state_dict(state)


class Dangerous:
    """What a pickle of somebody else's may hold."""

    def __reduce__(self) -> Any:
        return (print, ("executed",))


def bodies() -> dict[str, bytes]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("archive/data.pkl", b"nothing")
        made.writestr("../../outside", b"x")
    tensor = io.BytesIO()
    torch.save(torch.zeros(2), tensor)
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(100)}, whole)
    return {
        "empty": b"",
        "text": b"hello",
        "zip": archive.getvalue(),
        "tensor": tensor.getvalue(),
        "half": whole.getvalue()[: len(whole.getvalue()) // 2],
        "pickle": pickle.dumps(Dangerous()),
        "deep": b"\x80\x02" + b"]" * 100_000 + b".",
        "null": bytes(100),
    }


@pytest.mark.parametrize("name", list(bodies()))
def test_a_true_checksum_around_foreign_bytes(
    tmp_path: Path, recipe: Recipe, digits: DataSet, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe, digits)
    folder.prepare(run, resume=False)
    body = bodies()[name]
    header = b"%s %s %d\n" % (checkpoint.FORMAT, hashlib.sha256(body).hexdigest().encode(), len(body))
    folder.checkpoint_path.write_bytes(header + body)
    before = {entry.name: entry.read_bytes() for entry in folder.path.iterdir()}
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt.*restore the file"):
        folder.restore(run)
    assert {entry.name: entry.read_bytes() for entry in folder.path.iterdir()} == before
    assert "executed" not in capfd.readouterr().out


class Slow(Last):
    """A source of the user's own that remembers."""


def test_a_run_with_a_source_of_ones_own_resumes(recipe: Recipe, digits: DataSet) -> None:
    sources.register(SourceSpec("slow", "the last true gradient", "W", "#0072B2", remembers=True))(Slow)
    try:
        table = "layer 1 2\n* backprop slow\n"
        own = recipe.replace(method="table", schedule=table, predictor=None)
        state = copy.deepcopy(trained(own, digits))
        assert state["gp"]["sources"]["slow"], "it remembers something"
        assert survives(own, digits, state) is None
        broken = changed(state, ("gp", "sources", "slow"), lambda value: {"x": object})
        with pytest.raises(CheckpointError, match=r"gp\.sources\.slow holds more than plain values and tensors"):
            Run(own, digits).load_state_dict(broken)
    finally:
        sources.unregister("slow")


def test_a_run_with_a_predictor_of_ones_own_resumes(recipe: Recipe, digits: DataSet) -> None:
    class Counting(Watcher):
        """Remembers how many examples it has seen."""

        def __init__(self) -> None:
            super().__init__(FeatureSpec(output=Pooling()))
            self.counts: dict[str, int] = {}

        def learn(self, examples: Any) -> dict[str, Any]:
            for example in examples:
                self.counts[example.layer.name] = self.counts.get(example.layer.name, 0) + 1
            return {}

        def state_dict(self) -> dict[str, Any]:
            return dict(self.counts)

        def load_state_dict(self, state: Any) -> None:
            self.counts = dict(state)

    predictors.register("counting")(Counting)
    try:
        own = recipe.replace(method="adagp", predictor="counting")
        state = copy.deepcopy(trained(own, digits))
        assert state["gp"]["predictor"]
        assert survives(own, digits, state) is None
    finally:
        predictors.unregister("counting")
