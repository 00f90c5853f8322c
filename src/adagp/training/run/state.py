"""Whether a state is one that a run can go on from, found out before any of it is taken over.

Most of a state has the form of the run's own at its beginning, down to the types and shapes of tensors. The rest grows
while a run trains: what its entries look like stands here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_Check = Callable[[Any], bool]


def fault(found: Any, like: Any, place: str = "", own: Collection[str] = ()) -> str | None:
    """The first place where a state differs in form from `like`, the state of a run that has trained nothing.

    Args:
        found: The state.
        like: The state of the run at its beginning.
        place: Where both are, as words joined by dots.
        own: Places that classes of the user fill: whatever is plain may be there.

    Returns:
        What is wrong, in words; None where nothing is.
    """
    if place in own:
        return None if _is_plain_tree(found) else f"{place} holds more than plain values and tensors"
    name = place.rpartition(".")[2]
    check = _GROWN.get(".".join(place.split(".")[-2:])) or _GROWN.get(name)
    if check is not None:
        return None if check(found) else f"{place} is not what a run keeps there"
    if name == "state" and isinstance(like, dict):
        return None if _is_optimizer_state(found) else f"{place} is no optimizer's state"
    if isinstance(like, Tensor):
        return _tensor_fault(found, like, place)
    if isinstance(like, Mapping):
        return _mapping_fault(found, like, place, own)
    if isinstance(like, list | tuple):
        if type(found) is not type(like) or len(found) != len(like):
            return f"{place} is no {type(like).__name__} of {len(like)}"
        inner = (fault(*pair, f"{place}[{index}]", own) for index, pair in enumerate(zip(found, like, strict=True)))
        return next((problem for problem in inner if problem), None)
    if type(found) is type(like) or (type(like) is float and type(found) is int):
        return f"{place} = {found} is negative" if type(like) is int and found < 0 else None
    return f"{place} is a {type(found).__name__}, not a {type(like).__name__}"


def _tensor_fault(found: Any, like: Tensor, place: str) -> str | None:
    if not isinstance(found, Tensor):
        return f"{place} is a {type(found).__name__}, not a tensor"
    if found.dtype != like.dtype or found.shape != like.shape or found.layout != like.layout:
        return f"{place} is {_form(found)}, not {_form(like)}"
    return None


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


_FREE = ("lr", "fused", "foreach", "capturable")
"""Options of an optimizer that change while it trains, or with the device."""


_NEWER = ("maximize", "foreach", "differentiable", "fused", "capturable", "decoupled_weight_decay")


def _same(found: Any, like: Any) -> bool:
    try:
        return type(found) is not Tensor and bool(found == like)
    except RuntimeError:  # a list with a tensor in it
        return False


def _mapping_fault(found: Any, like: Mapping[Any, Any], place: str, own: Collection[str]) -> str | None:
    if not isinstance(found, dict):
        return f"{place or 'the whole'} is a {type(found).__name__}, not a dict"
    # An optimizer's options: torch adds some from version to version, and fills in those that a state lacks.
    missing = [key for key in like if key not in found and not (place.endswith("]") and key in _NEWER)]
    strange = [key for key in found if key not in like and not place.endswith("]")]
    if missing or strange:
        return f"{place or 'the whole'} {'lacks' if missing else 'has a foreign'} '{(missing or strange)[0]}'"
    if place.endswith("]"):
        common = [key for key in like if key in found and key not in _FREE]
        fixed = [key for key in common if not _same(found[key], like[key])]
        if fixed:
            return f"{place}.{fixed[0]} is not {like[fixed[0]]}"
    inner = (fault(found[key], like[key], f"{place}.{key}" if place else str(key), own) for key in like if key in found)
    return next((problem for problem in inner if problem), None)


def _is_optimizer_state(found: Any) -> bool:
    """Its tensors' sizes are compared with the parameters' afterwards."""
    return _each(lambda entry: isinstance(entry, dict) and all(map(_is_plain, entry.values())), keys=int)(found)


_KEPT = ({"momentum_buffer"}, {"step", "exp_avg", "exp_avg_sq"})
"""What SGD and what Adam keep for each parameter."""


def optimizer_fault(state: Mapping[str, Any], parameters: Sequence[Tensor], place: str) -> str | None:
    """What is wrong with the part of an optimizer's state that belongs to its parameters.

    Its kernels take the sizes on trust: others would have them write outside of the tensors.
    """
    for index, entry in state["state"].items():
        if not 0 <= index < len(parameters) or set(entry) not in _KEPT:
            return f"{place}.state has a foreign '{index}'"
        for name, value in entry.items():
            like = torch.zeros(()) if name == "step" else parameters[index]
            problem = _tensor_fault(value, like, f"{place}.state.{index}.{name}")
            if problem and not (name == "momentum_buffer" and value is None):
                return problem
    return None


def rows_fault(state: Any, layers: Mapping[str, Sequence[Any]], place: str = "") -> str | None:
    """What is wrong with the rows that sources and predictors remember for these layers (rows, row length, kind)."""
    if not isinstance(state, dict):
        return None
    for name, value in state.items():
        inner = f"{place}.{name}" if place else str(name)
        if isinstance(value, dict) and value.keys() == {"rows", "count"}:
            if name not in layers:
                return f"{place} has a foreign '{name}'"
            sizes = [list(block.shape) for block in value["rows"]]
            if not sizes or sizes != [list(layers[name][:2]), [layers[name][0], 1]][: len(sizes)]:
                return f"{inner}.rows does not fit its layer"
            continue
        problem = rows_fault(value, layers, inner)
        if problem:
            return problem
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) is float or _is_count(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, Tensor | str | bool | int | float)


def _is_plain_tree(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str | int) and _is_plain_tree(inner) for key, inner in value.items())
    return all(map(_is_plain_tree, value)) if isinstance(value, list | tuple) else _is_plain(value)


def _each(check: _Check, keys: type = str) -> _Check:
    return lambda found: (
        isinstance(found, dict) and all(type(key) is keys and check(value) for key, value in found.items())
    )


def _list(check: _Check) -> _Check:
    return lambda found: isinstance(found, list) and all(map(check, found))


def _dict(**checks: _Check) -> _Check:
    return lambda found: (
        isinstance(found, dict)
        and found.keys() == checks.keys()
        and all(check(found[name]) for name, check in checks.items())
    )


def _running(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 3 and all(map(_is_number, found[:2])) and _is_count(found[2])


def _is_matrix(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32 and value.dim() == 2


def _is_blocks(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32 and value.dim() == 3


def _is_generator(value: Any) -> bool:
    return value is None or (isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1)


def _is_times(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64 and value.dim() == 1


def _is_heads(value: Any) -> bool:
    """Whether their sizes fit is found out when the heads are built, in the first batch."""
    if not isinstance(value, dict) or value.get("heads") is None:
        return bool(value == {"heads": None})
    tensors = _each(_each(lambda part: isinstance(part, Tensor)))
    return _dict(heads=tensors, optimizer=lambda found: found is None or _is_plain_tree(found))(value)


_FIGURES = dict.fromkeys(("cosine", "norm_ratio", "mse", "mape", "trust", "batches"), _is_number)
_quality = _each(_dict(**_FIGURES))
_running_rows = _each(_dict(rows=_list(_is_matrix), count=_is_count))
_GROWN: dict[str, _Check] = {
    "recipe": lambda found: isinstance(found, dict),
    "counts": _each(_is_count),
    "checks_finite": lambda found: found is None or type(found) is bool,
    "order": lambda found: found is None or _list(_is_text)(found),
    "mean_squares": lambda found: _list(_is_number)(found) and len(found) <= 2,
    "means": _running_rows,
    "mapes": _each(_is_number),
    "sources.last": _running_rows,
    "sources.mean": _running_rows,
    "sources.local": _is_heads,
    "predictor.feedback": _each(
        _dict(
            inputs=_is_blocks,
            products=_is_blocks,
            dot=lambda found: type(found) is float,
            square=_is_number,
            is_exact=lambda found: type(found) is bool,
        )
    ),
    "schedule.layers": _each(_running),
    "overall": _running,
    "log": _list(_is_text),
    "generator": _is_generator,
    # One of the CPU, and one more where the run was on another device.
    "states": lambda found: _list(_is_generator)(found) and None not in found[:1] and 1 <= len(found) <= 2,
    "diverged": lambda found: found is None or _is_text(found),
    "batch_seconds": _each(_is_times),
    "predictor_batch_seconds": _each(_is_times),
    "records": _list(
        _dict(
            epoch=_is_count,
            step=_is_count,
            train_loss=_is_number,
            test_loss=_is_number,
            metrics=_each(_is_number),
            lr=_is_number,
            batches=_each(_is_count),
            seconds=_each(_is_number),
            predictor_seconds=_is_number,
            train_seconds=_is_number,
            counts=_each(_is_count),
            quality=_quality,
            reasons=_list(_is_text),
        )
    ),
}
