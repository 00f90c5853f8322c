"""What is learned from the true gradients of a batch."""

from collections.abc import Iterable, Mapping

import torch

from adagp._engine.capture.hooks import Current
from adagp._engine.coverage import drop
from adagp._engine.layer_batch import LayerBatch
from adagp._engine.progress import Progress
from adagp._engine.setup import Setup
from adagp.layers import Layer, Rows
from adagp.predictors import Features, TrainingExample
from adagp.quality import GradientAlignment

_NEVER_SEEN = (
    "its output is never seen: its weight is used without calling the module, or torch.compile runs the code of an "
    "equal model that it compiled before, without the hooks (call torch.compiler.reset() between the two)"
)


def notice_missing_gradients(
    progress: Progress, current: Current, layers: Iterable[LayerBatch], step: int, ran_own_backward: bool
) -> None:
    """Warn of layers whose source waited for a backward and got nothing; drop those that were never called.

    Args:
        progress: Gets to know which layers have run.
        current: Warns.
        layers: The layers of the batch.
        step: The batch's step.
        ran_own_backward: Whether the backward was ours. Another may leave the exact gradients for later.
    """
    for entry in layers:
        layer, spec, so_far = entry.layer, entry.spec, progress.layers[entry.layer.name]
        if spec.needs_grad_output:
            if layer.bias is not None and not layer.bias.requires_grad:
                layer.bias.grad = None  # a frozen bias: the graph was cut there anyway, so nobody looked
            if not entry.has_run and not so_far.has_run:
                drop(
                    progress,
                    layer,
                    f"its module was not called at step {step}: either it was not reached, or its weight is used "
                    "without calling it, where no source can stand in; it is trained exactly from now on",
                )
        waits = spec.needs_grad_output or (spec.needs_graph and ran_own_backward)
        if waits and entry.samples and layer.weight.grad is None:
            current.warn_once(
                f"no gradient at {layer.name}",
                "layer %r ran at step %d but no gradient came to its output, so %r had nothing to give and its weight "
                "was left alone: does the loss depend on it, and did a backward reach it?",
                layer.name,
                step,
                spec.name,
            )
        if entry.samples:
            so_far.has_run = True


def find_true_layers(setup: Setup, progress: Progress, layers: Iterable[LayerBatch]) -> list[Layer]:
    """The layers that backpropagation served."""
    found: list[Layer] = []
    for entry in layers:
        layer = entry.layer
        if not entry.spec.is_true or layer.weight.grad is None or progress.layers[layer.name].dropped:
            continue
        if not entry.samples and setup.depends_on_calls:
            drop(progress, layer, _NEVER_SEEN)
            continue
        found.append(layer)
    return found


def rows_of(layers: Iterable[Layer]) -> dict[str, Rows]:
    """The rows of their gradients, by name."""
    found = ((layer.name, layer.gradient()) for layer in layers)
    return {name: rows for name, rows in found if rows is not None}


def sums_of_own_rows(layers: Iterable[LayerBatch], squares: Mapping[str, tuple[float, ...]]) -> list[float]:
    """The sums of squares of the rows that this rank holds, in an order that is the same on all ranks."""
    return [
        value for entry in layers for value in squares.get(entry.layer.name, (0.0,) * len(entry.layer.parameters()))
    ]


def sums_of_all_rows(layers: Iterable[LayerBatch], sums: Iterable[float]) -> dict[str, tuple[float, ...]]:
    """Undo `sums_of_own_rows`, after they were added up."""
    values = iter(sums)
    return {entry.layer.name: tuple(next(values) for _ in entry.layer.parameters()) for entry in layers}


def teach(
    setup: Setup,
    progress: Progress,
    features: Mapping[str, Features],
    true_grads: Mapping[str, Rows],
    squares: Mapping[str, tuple[float, ...]],
) -> Mapping[str, GradientAlignment]:
    """Show the true gradients to the sources that remember and to the predictor; record its quality.

    Args:
        setup: The set-up.
        progress: Gets the quality.
        features: The features of the layers that the predictor asked for.
        true_grads: The true gradients.
        squares: The sum of squares of each of their blocks.
    """
    for source in setup.sources.values():
        if source.spec.remembers:
            source.learn(true_grads)
    predictor = setup.predictor
    if predictor is None or not true_grads:
        return {}
    examples = [
        TrainingExample(setup.by_name[name], features.get(name), rows, squares[name])
        for name, rows in true_grads.items()
    ]
    with torch.enable_grad():
        alignments = predictor.learn(examples)
    if not isinstance(alignments, Mapping):
        raise TypeError(
            f"{type(predictor).__name__}.learn gave {alignments!r}: return a dict of GradientAlignment by layer, "
            "or {}"
        )
    for name, alignment in alignments.items():
        layer = progress.layers[name]
        layer.quality = layer.quality.after(alignment, predictor.trust(name))
    return alignments
