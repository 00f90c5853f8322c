"""The four designs: how a batch's layers and the predictor share the machine (sections 4.2 and 6.3 of the paper).

A design turns a batch into steps that follow each other. Layers are synchronised: a step begins when all of the one
before it is done. The designs are composed of the same parts:

- BASELINE: plain backpropagation, without a predictor;
- EFFICIENT: the predictor runs on the same array after each layer, its weights stay in a memory of their own;
- LOW: the same, but its weights are loaded from DRAM first, and stored again after learning;
- MAX: it runs on a second array beside the layers: its forward beside the next layer's forward, its learning beside the
  same layer's backward. Where the second array is so small that the first would be done sooner, the first is used, so
  MAX is never slower than EFFICIENT.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from adagp.accelerator.duties import Duty
from adagp.accelerator.machine import Machine
from adagp.accelerator.parts import (
    Parts,
    backward_cycles,
    backward_words,
    buffer_words,
    forward_cycles,
    forward_words,
    prediction_words,
    reload_words,
)


class Design(Enum):
    """The baseline and the paper's three."""

    BASELINE = "baseline"
    LOW = "low"
    EFFICIENT = "efficient"
    MAX = "max"


FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Step:
    """What runs until the next step may begin.

    Attributes:
        layer: That is computed; empty where only the predictor is left.
        stage: `forward` or `backward`.
        cycles: Of the whole step.
        layer_cycles: Of the layer itself, stalls included.
        predictor_layer: Whose gradient is predicted or learned; empty if none.
        predictor_cycles: Of the predictor.
        load_cycles: Of loading and storing the predictor's weights.
        beside: Whether the predictor runs at the same time, on the second array.
    """

    layer: str
    stage: str
    cycles: int
    layer_cycles: int
    predictor_layer: str = ""
    predictor_cycles: int = 0
    load_cycles: int = 0
    beside: bool = False


_Task = tuple[Parts, Duty]
_Builder = Callable[[_Task, str, Machine], Step]


def batch_steps(design: Design, layers: Sequence[Parts], duties: Sequence[Duty], machine: Machine) -> list[Step]:
    """One batch on a design: the forward from the first layer to the last, then what there is of a backward."""
    tasks = list(zip(layers, duties, strict=True))
    build = _BUILDERS[design]
    forward = _overlapped(tasks, machine) if design is Design.MAX else [build(task, FORWARD, machine) for task in tasks]
    backward = [build(task, BACKWARD, machine) for task in reversed(tasks) if task[1].input_grad or task[1].weight_grad]
    return forward + backward


@dataclass(frozen=True)
class Words:
    """Words of a layer in one batch, its predictor's included.

    Attributes:
        layer: Its name.
        dram: Between chip and DRAM.
        buffer: Between buffer and arrays.
    """

    layer: str
    dram: int
    buffer: int


def batch_words(design: Design, layers: Sequence[Parts], duties: Sequence[Duty]) -> list[Words]:
    """What every layer moves in one batch on a design."""
    return [_words(design, layer, duty) for layer, duty in zip(layers, duties, strict=True)]


def _words(design: Design, layer: Parts, duty: Duty) -> Words:
    dram = forward_words(layer, duty) + backward_words(layer, duty) + prediction_words(layer, duty)
    if design is Design.LOW:
        dram += reload_words(layer, duty, FORWARD) + reload_words(layer, duty, BACKWARD)
    return Words(layer.name, dram, buffer_words(layer, duty))


def _alone(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer without a predictor."""
    cycles = _layer_cycles(task, stage, machine)
    return Step(task[0].name, stage, cycles, cycles)


def _after(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer, then the predictor on the same array."""
    return _followed(task[0].name, stage, _layer_cycles(task, stage, machine), task)


def _reloaded(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer, then the predictor's weights, then the predictor on the same array."""
    load = machine.transfer_cycles(reload_words(*task, stage))
    return _followed(task[0].name, stage, _layer_cycles(task, stage, machine), task, load)


def _beside(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer and the predictor for it at the same time."""
    return _accompanied(task[0].name, stage, _layer_cycles(task, stage, machine), task)


def _overlapped(tasks: Sequence[_Task], machine: Machine) -> list[Step]:
    """The forward of MAX: the predictor for a layer runs beside the next one, for the last layer alone."""
    steps = [_alone(tasks[0], FORWARD, machine)]
    for before, task in pairwise(tasks):
        steps.append(_accompanied(task[0].name, FORWARD, _layer_cycles(task, FORWARD, machine), before))
    tail = _accompanied("", FORWARD, 0, tasks[-1])
    return [*steps, tail] if tail.cycles else steps


_BUILDERS: Mapping[Design, _Builder] = {
    Design.BASELINE: _alone,
    Design.LOW: _reloaded,
    Design.EFFICIENT: _after,
    Design.MAX: _beside,
}


def _layer_cycles(task: _Task, stage: str, machine: Machine) -> int:
    return (forward_cycles if stage == FORWARD else backward_cycles)(*task, machine)


def _predictor_cycles(task: _Task, stage: str, second: bool) -> int:
    layer, duty = task
    cost = layer.second_predictor if second else layer.predictor
    if stage == FORWARD:
        return cost.predict_cycles if duty.predict else 0
    return cost.learn_cycles if duty.learn else 0


def _followed(layer: str, stage: str, layer_cycles: int, task: _Task, load_cycles: int = 0) -> Step:
    """A layer of so many cycles, and then the predictor for a task on the same array."""
    predictor = _predictor_cycles(task, stage, second=False)
    whose = task[0].name if predictor else ""
    return Step(layer, stage, layer_cycles + load_cycles + predictor, layer_cycles, whose, predictor, load_cycles)


def _accompanied(layer: str, stage: str, layer_cycles: int, task: _Task) -> Step:
    """A layer of so many cycles and the predictor for a task, on whichever array is done sooner."""
    predictor = _predictor_cycles(task, stage, second=True)
    followed, together = _followed(layer, stage, layer_cycles, task), max(layer_cycles, predictor)
    if not predictor or followed.cycles < together:
        return followed
    return Step(layer, stage, together, layer_cycles, task[0].name, predictor, beside=True)
