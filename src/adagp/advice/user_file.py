"""A training in a user's file: `build()` returns the model, the optimizer, the loss, and a batch or a loader."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from adagp.advice.errors import AdviceError
from adagp.advice.subject import required_arguments
from adagp.user_code import load_function, named_errors

_EXAMPLE = "return model, optimizer, loss, batch_or_loader"


@dataclass(frozen=True)
class Training:
    """What `advise` takes."""

    model: nn.Module
    optimizer: Optimizer
    closure: Callable[..., Any]
    loader: Iterable[Any]


def load_training(reference: str) -> Training:
    """Run a user's `build` and check what it gives.

    Its loss takes the model's output and the target of a batch `(inputs, target)`; or a batch alone, and then runs the
    model itself.

    Args:
        reference: `path/file.py:build` or `package.file:build`.

    Raises:
        AdviceError: When there is no such function, or it gives something else; one line says what and where.
    """
    where, remedy = f"module={reference}", f"name a function that ends with `{_EXAMPLE}`"
    try:
        build = load_function(reference, remedy)
        _check_function(where, build, remedy)
        with named_errors(reference, "cannot be built"):
            built = build()
    except ValueError as error:
        raise AdviceError(str(error)) from error
    if not isinstance(built, tuple | list) or len(built) != 4:
        given = f"{len(built)} values" if isinstance(built, tuple | list) else f"a {type(built).__name__}"
        raise AdviceError(f"{where}: gives {given}; let it `{_EXAMPLE}`")
    model, optimizer, loss, data = built
    for place, value in zip(("first", "second", "third", "fourth"), built, strict=True):
        if isinstance(value, type):
            raise AdviceError(f"{where}: the {place} value is the class {value.__name__}; return an object of it")
    if not isinstance(model, nn.Module):
        raise AdviceError(f"{where}: the first value is a {type(model).__name__}; return the model, an nn.Module")
    if not isinstance(optimizer, Optimizer):
        raise AdviceError(f"{where}: the second value is a {type(optimizer).__name__}; return the optimizer")
    if not callable(loss):
        raise AdviceError(f"{where}: the third value is a {type(loss).__name__}; return the loss, a function")
    return Training(model, optimizer, _closure(where, model, loss), _loader(where, data))


def _check_function(where: str, build: Callable[..., Any], remedy: str) -> None:
    """Refuse what is no function, or one that needs arguments."""
    _, _, name = where.rpartition(":")
    if isinstance(build, type):
        raise AdviceError(f"{where}: '{name}' is a class; {remedy}")
    if isinstance(build, nn.Module):
        raise AdviceError(f"{where}: '{name}' is a {type(build).__name__}; {remedy}")
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(build).parameters.values()
    wanted = [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind not in kinds]
    if wanted:
        raise AdviceError(
            f"{where}: '{name}' asks for {', '.join(wanted)}; let it do without arguments, or give them default values"
        )


def _loader(where: str, data: Any) -> Iterable[Any]:
    """The loader, or one around a single batch."""
    if data is None or (isinstance(data, tuple | Mapping) and not data):
        raise AdviceError(f"{where}: gives no batch; return an example batch or a loader as the fourth value")
    if _is_ambiguous(data):
        raise AdviceError(
            f"{where}: the fourth value is a list of {len(data)} tensors of one shape, a batch or a loader; return a "
            "tuple for a batch, or iter(...) of the list for a loader"
        )
    is_list_of_parts = isinstance(data, list) and bool(data) and isinstance(data[0], Tensor)
    if isinstance(data, Tensor | Mapping | tuple) or is_list_of_parts:
        return [data]
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise AdviceError(
            f"{where}: the fourth value is a {type(data).__name__}; return a batch, such as (x, y), or a loader"
        )
    return data


def _is_ambiguous(data: Any) -> bool:
    """Whether a list may be one batch with many inputs or many batches with one."""
    if not isinstance(data, list) or len(data) < 3 or not all(isinstance(part, Tensor) for part in data):
        return False
    return len({(part.shape, part.dtype) for part in data}) == 1


def _closure(where: str, model: nn.Module, loss: Callable[..., Any]) -> Callable[[Any], Any]:
    """The loss as a function of a batch."""
    wanted = required_arguments(loss.forward if isinstance(loss, nn.Module) else loss, unknown=2)
    if wanted == 1:
        return loss
    if wanted != 2:
        raise AdviceError(
            f"{where}: the loss asks for {wanted} arguments; let it take the output and the target, or a batch alone"
        )

    def of_pair(batch: Any) -> Any:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise AdviceError(
                f"{where}: the loss takes an output and a target, and a batch is no pair (inputs, target); let it take "
                "the batch alone and run the model itself"
            )
        return loss(model(batch[0]), batch[1])

    return of_pair
