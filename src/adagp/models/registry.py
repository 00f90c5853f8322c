"""Networks by name and form, so that a recipe or a command line can say which one it trains."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CIFAR = "cifar"
"""The form for 32x32 images, and the default where a network has it."""
IMAGENET = "imagenet"
"""The form of the published ImageNet networks, layer by layer and name by name."""

_B = TypeVar("_B", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Form:
    """One way in which a network is built.

    Attributes:
        builder: Builds the network, given every size by name.
        sizes: What can be chosen, such as `num_classes`, and the value where nobody chooses.
        inputs: Given every size by name, the shape of each argument of the forward for one sample; without the
            batch, as (channels, height, width) for images and (words,) for text.
        task: What the network is for: `classification`, `translation` or `detection`.
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
    """Make a builder known under a name and form; works for a function and for a module class.

    Args:
        name: The network's name.
        form: The network's form; `build` takes the one registered first by default.
        task: What it is for: `classification`, `translation` or `detection`.
        pixels: Height and width of the images it is meant for.
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
    """The names `build` knows, sorted; those for one task only, if it is given."""
    return sorted({name for (name, _), form in _builders.items() if task in (None, form.task)})


def task(name: str) -> str:
    """What a network is for: `classification`, `translation` or `detection`.

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
    """What can be chosen when building a network, with the default values.

    Raises:
        ValueError: for an unknown name or form.
    """
    return dict(_find(name, form).sizes)


def build(name: str, form: str | None = None, **sizes: int) -> nn.Module:
    """Build a network; its weights follow torch's global seed.

    Args:
        name: One of `names()`.
        form: One of `forms(name)`; `cifar` where the network has it and nothing else is said.
        **sizes: Any of `sizes(name, form)`: `num_classes` and `in_channels` of an image classifier.

    Raises:
        ValueError: for an unknown name, form or size (the message lists the known ones), or a size below one.
    """
    found = _find(name, form)
    outline = torch.empty(0).is_meta
    with _DrawNothing() if outline else nullcontext():
        return found.builder(**_complete(name, found, sizes))


class _DrawNothing(TorchFunctionMode):
    """Initialisation without numbers to draw: on the meta device torch takes seconds to do nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        drawn_directly = func in (Tensor.normal_, Tensor.uniform_)
        if drawn_directly or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def example_inputs(name: str, form: str | None = None, *, batch: int = 1, **sizes: int) -> tuple[Tensor, ...]:
    """Arguments the forward of `build(name, form, **sizes)` takes, all zero: for tracing shapes, on any device.

    Images are floating point, words are integers (the index 1, as 0 is padding); torch's default device decides
    where they live.
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
