"""Registry of networks by name and form, for recipes and commands."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CIFAR = "cifar"
"""The form for 32x32 images; the default of networks that have it."""
IMAGENET = "imagenet"
"""The form of the published ImageNet networks, with their layers and names."""

_B = TypeVar("_B", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Form:
    """One variant of a network.

    Attributes:
        builder: Builds the network from every size by name.
        sizes: The arguments, such as `num_classes`, and their defaults.
        inputs: Maps every size by name to the shape of each argument of the forward, without the batch:
            (channels, height, width) for images and (tokens,) for text.
        task: `classification`, `translation`, `detection` or `next-token`.
    """

    builder: Callable[..., nn.Module]
    sizes: Mapping[str, int]
    inputs: Callable[..., tuple[tuple[int, ...], ...]]
    task: str


_builders: dict[tuple[str, str], Form] = {}


def register(
    name: str,
    form: str = CIFAR,
    *,
    task: str = "classification",
    pixels: int = 32,
    inputs: Callable[..., tuple[tuple[int, ...], ...]] | None = None,
    **sizes: int,
) -> Callable[[_B], _B]:
    """Register a builder, a function or a module class, under a name and form.

    Args:
        name: The network's name.
        form: The network's form; the one registered first is the default of `build`.
        task: `classification`, `translation`, `detection` or `next-token`.
        pixels: Height and width of the images it was designed for.
        inputs: Shapes of the forward's arguments, for networks that do not take one batch of images.
        **sizes: Default values, also of sizes beyond `num_classes` (10) and `in_channels` (3). A network that takes
            no images has only those given here.

    Raises:
        ValueError: if the name is taken, because a silently replaced model would falsify later runs.
    """

    def images(*, in_channels: int, **_: int) -> tuple[tuple[int, ...], ...]:
        return ((in_channels, pixels, pixels),)

    def add(builder: _B) -> _B:
        if (name, form) in _builders:
            raise ValueError(
                f"register: a model named {name!r} exists already in the form {form!r}; choose another name or form"
            )
        if inputs is None:
            _builders[name, form] = Form(builder, {"num_classes": 10, "in_channels": 3, **sizes}, images, task)
        else:
            _builders[name, form] = Form(builder, sizes, inputs, task)
        return builder

    return add


def names(task: str | None = None) -> list[str]:
    """Registered names, sorted; of one task only, if given."""
    return sorted({name for (name, _), form in _builders.items() if task in (None, form.task)})


def task(name: str) -> str:
    """The task of a network: `classification`, `translation`, `detection` or `next-token`.

    Raises:
        ValueError: for an unknown name.
    """
    return _find(name, None).task


def forms(name: str) -> list[str]:
    """The forms of a network, the default first.

    Raises:
        ValueError: for an unknown name.
    """
    found = [form for known, form in _builders if known == name]
    if not found:
        raise ValueError(f"name: no model is called {name!r}; known models: {', '.join(names())}")
    return found


def sizes(name: str, form: str | None = None) -> dict[str, int]:
    """The sizes that `build` accepts for a network, with their defaults.

    Raises:
        ValueError: for an unknown name or form.
    """
    return dict(_find(name, form).sizes)


def build(name: str, form: str | None = None, **sizes: int) -> nn.Module:
    """Build a network; its weights follow torch's global seed.

    Args:
        name: One of `names()`.
        form: One of `forms(name)`; by default `cifar` if the network has it.
        **sizes: Any of `sizes(name, form)`: `num_classes` and `in_channels` of an image classifier.

    Raises:
        ValueError: for an unknown name, form or size (the message lists the known ones), or a size below one.
    """
    found = _find(name, form)
    outline = torch.empty(0).is_meta
    with _DrawNothing() if outline else nullcontext():
        return found.builder(**_complete(name, found, sizes))


class _DrawNothing(TorchFunctionMode):
    """Skips random initialisation, for which torch takes seconds even on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        drawn_directly = func in (Tensor.normal_, Tensor.uniform_)
        if drawn_directly or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def example_inputs(name: str, form: str | None = None, *, batch: int = 1, **sizes: int) -> tuple[Tensor, ...]:
    """Arguments for the forward of `build(name, form, **sizes)`, for tracing shapes.

    Images are zeros, tokens are ones because 0 is padding. They are on torch's default device.
    """
    found = _find(name, form)
    shapes = found.inputs(**_complete(name, found, sizes))
    return tuple(
        torch.zeros(batch, *shape) if len(shape) > 1 else torch.ones(batch, *shape, dtype=torch.long)
        for shape in shapes
    )


def _find(name: str, form: str | None) -> Form:
    known = forms(name)
    if form is None:
        form = known[0]
    if form not in known:
        raise ValueError(f"form: {name} has no form {form!r}; its forms: {', '.join(known)}")
    return _builders[name, form]


def _complete(name: str, form: Form, chosen: Mapping[str, int]) -> dict[str, int]:
    for size, value in chosen.items():
        if size not in form.sizes:
            raise ValueError(f"{size}: {name} has no such size; its sizes: {', '.join(form.sizes)}")
        if value < 1:
            raise ValueError(f"{size}: must be at least 1, got {value}")
    return {**form.sizes, **chosen}
