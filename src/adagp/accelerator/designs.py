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
from dataclasses import dataclass, replace
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


def batch_words(design: Design, layers: Sequence[Parts], duties: Sequence[Duty]) -> tuple[int, int]:
    """Words of one batch on a design: between chip and DRAM, and between buffer and arrays."""
    dram = 0
    for layer, duty in zip(layers, duties, strict=True):
        dram += forward_words(layer, duty) + backward_words(layer, duty) + prediction_words(layer, duty)
        if design is Design.LOW:
            dram += reload_words(layer, duty, FORWARD) + reload_words(layer, duty, BACKWARD)
    return dram, sum(buffer_words(layer, duty) for layer, duty in zip(layers, duties, strict=True))


def _alone(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer without a predictor."""
    layer, duty = task
    cycles = (forward_cycles if stage == FORWARD else backward_cycles)(layer, duty, machine)
    return Step(layer.name, stage, cycles, cycles)


def _after(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer, then the predictor on the same array."""
    return _followed(_alone(task, stage, machine), task)


def _reloaded(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer, then the predictor's weights, then the predictor on the same array."""
    after = _after(task, stage, machine)
    load = machine.transfer_cycles(reload_words(*task, stage))
    return replace(after, cycles=after.cycles + load, load_cycles=load)


def _beside(task: _Task, stage: str, machine: Machine) -> Step:
    """The layer and the predictor for it at the same time."""
    return _accompanied(_alone(task, stage, machine), task)


def _overlapped(tasks: Sequence[_Task], machine: Machine) -> list[Step]:
    """The forward of MAX: the predictor for a layer runs beside the next one, for the last layer alone."""
    steps = [_alone(tasks[0], FORWARD, machine)]
    steps += [_accompanied(_alone(task, FORWARD, machine), before) for before, task in pairwise(tasks)]
    tail = _accompanied(Step("", FORWARD, 0, 0), tasks[-1])
    return [*steps, tail] if tail.cycles else steps


_BUILDERS: Mapping[Design, _Builder] = {
    Design.BASELINE: _alone,
    Design.LOW: _reloaded,
    Design.EFFICIENT: _after,
    Design.MAX: _beside,
}


def _predictor_cycles(task: _Task, stage: str, second: bool) -> int:
    layer, duty = task
    cost = layer.second_predictor if second else layer.predictor
    if stage == FORWARD:
        return cost.predict_cycles if duty.predict else 0
    return cost.learn_cycles if duty.learn else 0


def _followed(step: Step, task: _Task) -> Step:
    """A step and then the predictor for a task, on the same array."""
    cycles = _predictor_cycles(task, step.stage, second=False)
    if not cycles:
        return step
    return replace(step, cycles=step.cycles + cycles, predictor_layer=task[0].name, predictor_cycles=cycles)


def _accompanied(step: Step, task: _Task) -> Step:
    """A step and the predictor for a task, on whichever array is done sooner."""
    cycles = _predictor_cycles(task, step.stage, second=True)
    together, followed = max(step.cycles, cycles), _followed(step, task)
    if not cycles or followed.cycles < together:
        return followed
    return replace(step, cycles=together, predictor_layer=task[0].name, predictor_cycles=cycles, beside=True)
