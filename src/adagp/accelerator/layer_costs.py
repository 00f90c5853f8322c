"""Everything one layer may need in a batch, alone on a machine. The designs are composed of these costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from adagp.accelerator.array import Array, PassCost, pass_cost
from adagp.accelerator.array_tasks import ArrayTask
from adagp.accelerator.machine import Machine
from adagp.accelerator.shapes import LayerShape, Pass
from adagp.accelerator.traffic import POLICIES, LayerTraffic, layer_traffic
from adagp.accelerator.workload import LayerOp


@dataclass(frozen=True)
class PredictorCost:
    """The predictor's cost for one layer on one array.

    Attributes:
        predict_cycles: Cycles of its forward.
        learn_cycles: Cycles of its gradients.
        predict_buffer_words: Words between buffer and array in its forward.
        learn_buffer_words: Words between buffer and array for its gradients.
    """

    predict_cycles: int
    learn_cycles: int
    predict_buffer_words: int
    learn_buffer_words: int


@dataclass(frozen=True)
class LayerCosts:
    """The costs of one layer on a machine.

    Attributes:
        op: The layer.
        costs: Cost on the array of each pass that training makes.
        predictor: The predictor on the layers' array.
        second_predictor: The predictor on the second array, which only MAX has.
        predictor_words: Weights of the predictor that serve this layer.
        prediction_words: Words of the predicted gradient.
        traffic: DRAM words of the layer itself.
        vector_cycles: Cycles of the norms, activations and pooling after it; the backward takes them again.
        update_cycles: Cycles of the optimizer on the vector unit.
    """

    op: LayerOp
    costs: Mapping[Pass, PassCost]
    predictor: PredictorCost
    second_predictor: PredictorCost
    predictor_words: int
    prediction_words: int
    traffic: LayerTraffic
    vector_cycles: int
    update_cycles: int

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.op.name

    def cycles(self, which: Pass) -> int:
        """Cycles of a pass on the array; 0 if training does not make it."""
        return self.costs[which].cycles if which in self.costs else 0


def network_costs(ops: Sequence[LayerOp], machine: Machine) -> list[LayerCosts]:
    """The costs of every layer of a network on a machine.

    Raises:
        ValueError: If there is no layer, or one cannot be mapped; the message names it.
    """
    if not ops:
        raise ValueError("ops: the network has no convolution and no matrix product; check that it is the right module")
    found = []
    for place, op in enumerate(ops):
        try:
            found.append(_layer_costs(op, machine, first=place == 0))
        except ValueError as error:
            raise ValueError(f"layer {op.name}: {error}") from error
    return found


def _layer_costs(op: LayerOp, machine: Machine, first: bool) -> LayerCosts:
    small, last = predictor = machine.predictor.layers(op)
    return LayerCosts(
        op=op,
        costs=_pass_costs(op.shape, op.passes, machine.array, machine.dataflow),
        predictor=_predictor_cost(predictor, machine.array, machine.dataflow),
        second_predictor=_predictor_cost(predictor, machine.second_array, machine.dataflow),
        predictor_words=small.weight_words + last.weight_words,
        prediction_words=last.output_words,
        traffic=layer_traffic(op, POLICIES[machine.policy], machine.array.buffer_words, first),
        vector_cycles=machine.vector_cycles(op.vector_words),
        update_cycles=machine.vector_cycles(op.shape.weight_words) if op.learns else 0,
    )


@cache
def _pass_costs(shape: LayerShape, passes: tuple[Pass, ...], array: Array, dataflow: str) -> Mapping[Pass, PassCost]:
    return {which: pass_cost(shape, which, array, dataflow) for which in passes}


@cache
def _predictor_cost(layers: tuple[LayerShape, LayerShape], array: Array, dataflow: str) -> PredictorCost:
    """Its convolution reads pooled outputs, which need no gradient."""
    predict = [pass_cost(layer, Pass.FORWARD, array, dataflow) for layer in layers]
    learn = [pass_cost(layer, Pass.WEIGHT_GRAD, array, dataflow) for layer in layers]
    learn.append(pass_cost(layers[1], Pass.INPUT_GRAD, array, dataflow))
    return PredictorCost(
        predict_cycles=sum(cost.cycles for cost in predict),
        learn_cycles=sum(cost.cycles for cost in learn),
        predict_buffer_words=sum(cost.buffer_words for cost in predict),
        learn_buffer_words=sum(cost.buffer_words for cost in learn),
    )


def forward_cycles(layer: LayerCosts, task: ArrayTask, machine: Machine) -> int:
    """Cycles of a layer's forward; weights that need no backward are updated right after it."""
    updates_now = task.update and not task.weight_grad
    cycles = layer.cycles(Pass.FORWARD) + layer.vector_cycles + (layer.update_cycles if updates_now else 0)
    return _stalled(cycles, forward_words(layer, task), machine)


def backward_cycles(layer: LayerCosts, task: ArrayTask, machine: Machine) -> int:
    """Cycles of the gradients that the task asks for, and of the update."""
    if not (task.input_grad or task.weight_grad):
        return 0
    cycles = layer.vector_cycles
    if task.input_grad:
        cycles += layer.cycles(Pass.INPUT_GRAD)
    if task.weight_grad:
        cycles += layer.cycles(Pass.WEIGHT_GRAD) + layer.update_cycles
    return _stalled(cycles, backward_words(layer, task), machine)


def _stalled(cycles: int, words: int, machine: Machine) -> int:
    return max(cycles, machine.transfer_cycles(words)) if machine.stalls else cycles


def forward_words(layer: LayerCosts, task: ArrayTask) -> int:
    """DRAM words of a layer's forward, and of an update right after it."""
    words = layer.traffic.forward_on_chip if task.forward_only else layer.traffic.forward
    return words + (layer.traffic.update_in_place if task.update and not task.weight_grad else 0)


def backward_words(layer: LayerCosts, task: ArrayTask) -> int:
    """DRAM words of the gradients that the task asks for, and of the update."""
    words = 0
    if task.input_grad:
        words += layer.traffic.input_grad
    if task.weight_grad:
        words += layer.traffic.weight_grad + (layer.traffic.update if task.update else 0)
    return words - (layer.traffic.shared if task.input_grad and task.weight_grad else 0)


def prediction_words(layer: LayerCosts, task: ArrayTask) -> int:
    """DRAM words of a prediction to learn from: written in the forward, read in the backward."""
    return 2 * layer.prediction_words if task.learn else 0


def reload_words(layer: LayerCosts, task: ArrayTask, stage: str) -> int:
    """DRAM words with which LOW reloads the predictor.

    To predict, it reads the weights. To learn, it reads and writes the weights and Adam's two moments.
    """
    if stage == "forward":
        return layer.predictor_words if task.predict else 0
    return 6 * layer.predictor_words if task.learn else 0


def buffer_words(layer: LayerCosts, task: ArrayTask) -> int:
    """Words between buffer and array, for the layer and the predictor."""
    made = {Pass.FORWARD: True, Pass.INPUT_GRAD: task.input_grad, Pass.WEIGHT_GRAD: task.weight_grad}
    words = sum(cost.buffer_words for which, cost in layer.costs.items() if made[which])
    words += layer.predictor.predict_buffer_words if task.predict else 0
    return words + (layer.predictor.learn_buffer_words if task.learn else 0)
