"""Which class supplies which source of the table."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from adagp.predictors import Predictor
from adagp.schedules import SourceSpec
from adagp.schedules import sources as table
from adagp.sources.predicted import Predicted
from adagp.sources.source import Source

_FACTORIES: dict[str, type[Source]] = {}
SomeSource = TypeVar("SomeSource", bound=type[Source])


def register(spec: SourceSpec) -> Callable[[SomeSource], SomeSource]:
    """Class decorator that makes a source of your own known by name, to plans, tables, grids and the command line.

    The class must be buildable without arguments; `AdaGP(sources=...)` takes one with options.

    Raises:
        ValueError: When the name or the letter is taken, or autograd is to write the gradient, as for `backprop`.
    """
    if not isinstance(spec, SourceSpec):
        raise TypeError(f"register takes a SourceSpec, not {spec!r}: @sources.register(SourceSpec('mine', ...))")
    if spec.needs_graph:
        raise ValueError(
            f"source {spec.name!r}: only backprop's gradient is written by autograd: set needs_graph=False"
        )

    def add(kind: SomeSource) -> SomeSource:
        table.add(spec)
        return supplies(spec.name)(kind)

    return add


def unregister(name: str) -> None:
    """Forget a source added by `register`.

    Raises:
        ValueError: When no such source was added.
    """
    if name not in _FACTORIES or _FACTORIES[name].__module__.startswith(f"{__package__}."):
        raise ValueError(f"source {name!r} was not registered by sources.register")
    table.remove(name)
    _FACTORIES.pop(name, None)


def supplies(name: str) -> Callable[[SomeSource], SomeSource]:
    """Class decorator: the class is the source of that name in the table."""

    def add(kind: SomeSource) -> SomeSource:
        kind.spec = table.spec(name)
        _FACTORIES[name] = kind
        return kind

    return add


def build(names: frozenset[str], predictor: Predictor | None, given: Mapping[str, Source]) -> dict[str, Source]:
    """The source objects for these names, those `given` among them; ValueError for a name that is unknown."""
    if not isinstance(given, Mapping):
        raise TypeError(f"sources = {given!r}: give a dict of names and objects, such as {{'topk': TopK(k=4)}}")
    for name, source in given.items():
        if not isinstance(source, Source):
            remedy = f", such as {source.__name__}()" if isinstance(source, type) else " derived from sources.Source"
            raise TypeError(f"sources[{name!r}] = {source!r}: give an object{remedy}")
        supplied = getattr(source, "spec", None)
        if supplied is None or supplied.name != name:
            found = "has no spec" if supplied is None else f"is the source {supplied.name!r}"
            raise ValueError(
                f"sources[{name!r}] = {source!r} {found}: register its class under a name of its own, or derive it "
                f"from the class of {name!r}"
            )
    unknown = given.keys() - names
    if unknown:
        asked = ", ".join(sorted(names))
        raise ValueError(f"sources={sorted(unknown)}: no plan of the schedule asks for them, only for {asked}")
    built: dict[str, Source] = {}
    for name in sorted(names):
        if name in given:
            built[name] = given[name]
        elif name == "predicted":
            if predictor is not None:
                built[name] = Predicted(predictor)
        elif name in _FACTORIES:
            built[name] = _FACTORIES[name]()
        else:
            raise ValueError(f"source {name!r} is unknown; known sources: predicted, {', '.join(sorted(_FACTORIES))}")
    return built
