"""The four designs: how a batch's layers and the predictor share the machine (sections 4.2 and 6.3 of the paper).

A design turns a batch into steps. Layers are synchronised: a step begins when the step before it is done.

- BASELINE: plain backpropagation, without a predictor.
- EFFICIENT: the predictor runs on the same array after each layer. Its weights stay in a memory of their own.
- LOW: as EFFICIENT, but the predictor's weights are loaded from DRAM first, and stored again after learning.
- MAX: the predictor runs on a second array. A layer's prediction overlaps with the next layer's forward, and its
  learning with the same layer's backward. Where the first array would finish both sooner, it does both, so MAX is never
  slower than EFFICIENT.

With `machine.tiles`, layers take the cycles of the RTL. There, MAX learns during the backward after the layer's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from adagp.accelerator.array_tasks import ArrayTask
from adagp.accelerator.layer_costs import (
    LayerCosts,
    backward_cycles,
    backward_words,
    buffer_words,
    forward_cycles,
    forward_words,
    prediction_words,
    reload_words,
)
from adagp.accelerator.machine import Machine
from adagp.accelerator.tiled_costs import TiledCosts


class Design(Enum):
    """The baseline and the paper's three designs."""

    BASELINE = "baseline"
    LOW = "low"
    EFFICIENT = "efficient"
    MAX = "max"


FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Step:
    """What runs until the next step may begin.

    Attributes:
        layer: The layer that is computed; empty if only the predictor runs.
        stage: `forward` or `backward`.
        cycles: Cycles of the whole step.
        layer_cycles: Cycles of the layer itself, stalls included.
        predictor_layer: The layer whose gradient is predicted or learned from; empty if none is.
        predictor_cycles: Cycles of the predictor.
        load_cycles: Cycles to load and store the predictor's weights.
        overlapped: Whether the predictor runs at the same time as the layer, on the second array.
    """

    layer: str
    stage: str
    cycles: int
    layer_cycles: int
    predictor_layer: str = ""
    predictor_cycles: int = 0
    load_cycles: int = 0
    overlapped: bool = False


@dataclass(frozen=True)
class Traffic:
    """Memory traffic of one layer in one batch, its predictor's included.

    Attributes:
        layer: The layer's name.
        dram_words: Words between chip and DRAM.
        buffer_words: Words between buffer and arrays.
    """

    layer: str
    dram_words: int
    buffer_words: int


@dataclass(frozen=True)
class _StageCosts:
    """Cycles of one layer and its predictor in one stage, before a design arranges them."""

    layer: str = ""
    stage: str = FORWARD
    cycles: int = 0
    predictor_cycles: int = 0
    second_predictor_cycles: int = 0
    load_cycles: int = 0


_NOTHING = _StageCosts()


def batch_steps(
    design: Design, layers: Sequence[LayerCosts], tasks: Sequence[ArrayTask], machine: Machine
) -> list[Step]:
    """The steps of one batch: the forward from the first layer to the last, then the backward, if any."""
    pairs = list(zip(layers, tasks, strict=True))
    forward = [_forward_costs(design, layer, task, machine) for layer, task in pairs]
    backward = [
        _backward_costs(design, layer, task, machine)
        for layer, task in reversed(pairs)
        if task.input_grad or task.weight_grad
    ]
    match design:
        case Design.BASELINE:
            return [_sequential(costs, _NOTHING) for costs in forward + backward]
        case Design.LOW:
            return [_sequential(costs, costs, costs.load_cycles) for costs in forward + backward]
        case Design.EFFICIENT:
            return [_sequential(costs, costs) for costs in forward + backward]
        case Design.MAX:
            if machine.tiles:  # as in the RTL, where learning needs the true gradient, and the second array the weights
                return _with_previous(forward, _at_once) + _with_previous(backward, _at_once)
            return _with_previous(forward, _overlapped) + [_overlapped(costs, costs) for costs in backward]


def batch_traffic(design: Design, layers: Sequence[LayerCosts], tasks: Sequence[ArrayTask]) -> list[Traffic]:
    """The traffic of every layer in one batch on a design."""
    return [_traffic(design, layer, task) for layer, task in zip(layers, tasks, strict=True)]


def _traffic(design: Design, layer: LayerCosts, task: ArrayTask) -> Traffic:
    dram = forward_words(layer, task) + backward_words(layer, task) + prediction_words(layer, task)
    if design is Design.LOW:
        dram += reload_words(layer, task, FORWARD) + reload_words(layer, task, BACKWARD)
    return Traffic(layer.name, dram, buffer_words(layer, task))


def _tiled(design: Design, layer: LayerCosts, machine: Machine) -> TiledCosts:
    from adagp.accelerator.rtl.tiled import tiled_costs  # imports Amaranth, an extra

    try:
        return tiled_costs(layer.op, design, machine)
    except ValueError as error:
        raise ValueError(f"layer {layer.name}: {error}") from error


def _forward_costs(design: Design, layer: LayerCosts, task: ArrayTask, machine: Machine) -> _StageCosts:
    if machine.tiles:
        tiled = _tiled(design, layer, machine)
        predictor = tiled.predict_cycles(task)
        return _StageCosts(layer.name, FORWARD, tiled.forward, predictor, predictor)
    return _StageCosts(
        layer.name,
        FORWARD,
        forward_cycles(layer, task, machine),
        layer.predictor.predict_cycles if task.predict else 0,
        layer.second_predictor.predict_cycles if task.predict else 0,
        machine.transfer_cycles(reload_words(layer, task, FORWARD)),
    )


def _backward_costs(design: Design, layer: LayerCosts, task: ArrayTask, machine: Machine) -> _StageCosts:
    if machine.tiles:
        tiled = _tiled(design, layer, machine)
        predictor = tiled.learn if task.learn else 0
        return _StageCosts(layer.name, BACKWARD, tiled.backward_cycles(task), predictor, predictor)
    return _StageCosts(
        layer.name,
        BACKWARD,
        backward_cycles(layer, task, machine),
        layer.predictor.learn_cycles if task.learn else 0,
        layer.second_predictor.learn_cycles if task.learn else 0,
        machine.transfer_cycles(reload_words(layer, task, BACKWARD)),
    )


def _sequential(layer: _StageCosts, predicted: _StageCosts, load_cycles: int = 0) -> Step:
    """One layer, then the predictor for a layer on the same array."""
    predictor = predicted.predictor_cycles
    cycles = layer.cycles + load_cycles + predictor
    name = predicted.layer if predictor else ""
    return Step(layer.layer, layer.stage, cycles, layer.cycles, name, predictor, load_cycles)


def _with_previous(stages: Sequence[_StageCosts], step: Callable[[_StageCosts, _StageCosts], Step]) -> list[Step]:
    """Each layer together with the predictor for the layer before it; the last one's predictor may run alone."""
    steps = [step(*both) for both in zip([*stages, _NOTHING], [_NOTHING, *stages], strict=True)]
    return steps if steps[-1].cycles else steps[:-1]


def _at_once(layer: _StageCosts, predicted: _StageCosts) -> Step:
    """One layer, and the predictor for a layer on the second array."""
    predictor = predicted.second_predictor_cycles
    name = predicted.layer if predictor else ""
    return Step(
        layer.layer, layer.stage, max(layer.cycles, predictor), layer.cycles, name, predictor, overlapped=predictor > 0
    )


def _overlapped(layer: _StageCosts, predicted: _StageCosts) -> Step:
    """One layer and the predictor for a layer: on two arrays at once, or on one if that takes fewer cycles."""
    predictor = predicted.second_predictor_cycles
    cycles = max(layer.cycles, predictor)
    sequential = _sequential(layer, predicted)
    if not predictor or sequential.cycles < cycles:
        return sequential
    return Step(layer.layer, layer.stage, cycles, layer.cycles, predicted.layer, predictor, overlapped=True)
