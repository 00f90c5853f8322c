"""What is saved of an `AdaGP`, and how it is taken over."""

import copy
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adagp._engine.progress import Progress
from adagp._engine.setup import Setup
from adagp.layers.sharding import is_distributed

_FORMAT = 7


def save(setup: Setup, progress: Progress) -> dict[str, Any]:
    """Everything needed to resume, in plain types and tensors, so that it loads with `weights_only=True`.

    Where each rank holds other rows, the rows are apart from the rest; see `_apart`.
    """
    state = {
        "format": _FORMAT,
        "setup": _description(setup),
        "layers": _shapes(setup),
        "progress": progress.state_dict(),
        "predictor": None if setup.predictor is None else setup.predictor.state_dict(),
        "sources": {name: source.state_dict() for name, source in setup.sources.items()},
        "schedule": setup.schedule.state_dict(),
    }
    snapshot = copy.deepcopy(state) | {"parts": _count(state)}  # training goes on in place
    return _apart(snapshot) if setup.ranks.shards_rows else snapshot


def load(setup: Setup, progress: Progress, state: Mapping[str, Any]) -> None:
    """Take over what `save` gave.

    Raises:
        ValueError: When the saved model or set-up differs from this one; the message says in what.
    """
    if setup.ranks.shards_rows and state.keys() == {"rest", "rows"}:
        state = _together(state)
    _refuse_foreign(setup, state)
    if setup.predictor is not None:
        setup.predictor.load_state_dict(state["predictor"])
    for name, source in setup.sources.items():
        source.load_state_dict(state["sources"][name])
    setup.schedule.load_state_dict(state["schedule"])
    progress.load_state_dict(state["progress"])


def _apart(state: dict[str, Any]) -> dict[str, Any]:
    """The state as `torch.distributed.checkpoint` can load it on any number of ranks.

    It fills the places of a given state, whose keys must therefore be the same before training as after it: `rows`
    has every tensor that is spread over ranks, `rest` all else, as bytes.
    """
    rows: dict[str, Tensor] = {}

    def taken(part: Any, path: str) -> Any:
        if is_distributed(part):
            rows[path] = part
            return (_ROWS_AT, path)
        if isinstance(part, dict):
            return {key: taken(one, f"{path}/{key}") for key, one in part.items()}
        return [taken(one, f"{path}/{place}") for place, one in enumerate(part)] if isinstance(part, list) else part

    rest = io.BytesIO()
    torch.save(taken(state, ""), rest)
    return {"rest": rest.getvalue(), "rows": rows}


def _together(state: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `_apart`."""

    def given(part: Any) -> Any:
        if isinstance(part, tuple) and part[:1] == (_ROWS_AT,):
            return state["rows"][part[1]]
        if isinstance(part, dict):
            return {key: given(one) for key, one in part.items()}
        return [given(one) for one in part] if isinstance(part, list) else part

    whole: dict[str, Any] = given(torch.load(io.BytesIO(state["rest"]), weights_only=True))
    return whole


_ROWS_AT = "rows at"


def _description(setup: Setup) -> dict[str, str]:
    """The parts of the set-up that a saved state must match."""
    return {
        "predictor": type(setup.predictor).__name__,
        "schedule": type(setup.schedule).__name__,
        "sources": ", ".join(f"{name}{source.options()}" for name, source in sorted(setup.sources.items())),
    }


def _shapes(setup: Setup) -> dict[str, list[Any]]:
    """The rows of every layer: their number, their length, and how they were cut from the weight."""
    return {layer.name: [layer.out, layer.fan_in, type(layer.kind).__name__] for layer in setup.layers}


def _count(part: Any) -> int:
    """The numbers, texts and tensors in a state."""
    if isinstance(part, dict):
        part = list(part.values())
    return sum(map(_count, part)) if isinstance(part, list) else 1


def _refuse_foreign(setup: Setup, state: Mapping[str, Any]) -> None:
    if "format" not in state:
        raise ValueError(f"this is no AdaGP state: its keys are {sorted(map(str, state))[:8]}")
    if state["format"] != _FORMAT:
        raise ValueError(
            f"the AdaGP state has format {state['format']}, this version reads {_FORMAT}: load it with the version "
            "that wrote it"
        )
    found = _count({name: part for name, part in state.items() if name != "parts"})
    if found != state["parts"]:
        raise ValueError(
            f"the state has {found} parts of {state['parts']}: torch.distributed.checkpoint fills only the places that "
            "a state has before training; of a model that is not sharded all ranks hold the same state, so write it on "
            "one rank with torch.save and read it on all with torch.load"
        )
    here = _shapes(setup)
    saved = {name: list(shape) for name, shape in state["layers"].items()}
    if here != saved:
        names = sorted(name for name in {*here, *saved} if here.get(name) != saved.get(name))
        first = names[0]
        raise ValueError(
            f"the state is of another model: {len(names)} layers differ, the first is {first!r} "
            f"(saved rows {saved.get(first)}, here {here.get(first)}); load it into the model it was saved from, "
            "in the same memory format"
        )
    for part, wanted in _description(setup).items():
        if state["setup"].get(part) != wanted:
            raise ValueError(
                f"the state was saved with another {part} ({state['setup'].get(part)}, here {wanted}): "
                "build AdaGP with the same one"
            )
