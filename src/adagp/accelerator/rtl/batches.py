"""A GP and a BP batch on each design, as stages: a stage begins when every core has finished the one before.

In MAX a layer's prediction overlaps with the next layer's forward. Its learning overlaps with the backward after the
layer's own, because it needs the layer's true gradient.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from adagp.accelerator.rtl.descriptor import Descriptor, Memory, Op
from adagp.accelerator.rtl.driver import Command, joined
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.integer_network import IntegerBatch, IntegerNetwork
from adagp.accelerator.rtl.passes import LayerPasses, PredictorPasses
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import MAIN, PREDICTOR

Stage = dict[str, list[Command]]
"""The commands of each core in one stage."""


def plain_stages(network: IntegerNetwork, batch: IntegerBatch, cores: Mapping[str, CoreGeometry]) -> list[Stage]:
    """Plain backpropagation, as on the baseline."""
    layers = LayerPasses(network, batch, cores[MAIN])
    count = len(network.layers)
    return [
        *({MAIN: layers.forward(index)} for index in range(count)),
        *({MAIN: layers.backward(index, learns=False)} for index in reversed(range(count))),
    ]


def gp_stages(network: IntegerNetwork, batch: IntegerBatch, cores: Mapping[str, CoreGeometry]) -> list[Stage]:
    """The forward, with every layer updated by its predicted gradient."""
    layers, predictor = LayerPasses(network, batch, cores[MAIN]), predictor_passes(network, batch, cores)
    count = range(len(network.layers))
    return _paired(
        [layers.forward(index) for index in count], [predictor.predict(index, updates=True) for index in count], cores
    )


def bp_stages(network: IntegerNetwork, batch: IntegerBatch, cores: Mapping[str, CoreGeometry]) -> list[Stage]:
    """Forward and backward; every layer is updated by its true gradient, from which the predictor learns."""
    layers, predictor = LayerPasses(network, batch, cores[MAIN]), predictor_passes(network, batch, cores)
    count = range(len(network.layers))
    back = list(reversed(count))
    return [
        *_paired(
            [layers.forward(index) for index in count],
            [predictor.predict(index, updates=False) for index in count],
            cores,
        ),
        *_paired(
            [layers.backward(index, learns=True) for index in back], [predictor.learn(index) for index in back], cores
        ),
    ]


def predictor_passes(
    network: IntegerNetwork, batch: IntegerBatch, cores: Mapping[str, CoreGeometry]
) -> PredictorPasses:
    """The predictor where the design keeps it: in its own core, in its own memory, or in the layers' memory."""
    if PREDICTOR in cores:
        return PredictorPasses(network, batch, cores[PREDICTOR], Memory.WEIGHTS, resident=True)
    resident = cores[MAIN].predictor_depth > 0
    return PredictorPasses(
        network, batch, cores[MAIN], Memory.PREDICTOR if resident else Memory.WEIGHTS, resident=resident
    )


def run_batch(bench: Bench, stages: Sequence[Stage], predictor: PredictorPasses) -> int:
    """The cycles of a batch, without those that first load a resident predictor."""
    unit = PREDICTOR if PREDICTOR in bench.geometries else MAIN
    before: list[Stage] = [{unit: predictor.load()}] if predictor.resident else []
    traces = bench.run(program([*before, *stages], list(bench.geometries)))
    total = max(trace.total_cycles for trace in traces.values())
    return total - stages_cycles(before, bench.geometries)


def program(stages: Sequence[Stage], units: Sequence[str]) -> dict[str, list[Command]]:
    """The stages as one list of commands for each core, joined at the start of each stage."""
    if len(units) == 1:
        return {units[0]: [command for stage in stages for command in stage[units[0]]]}
    nothing = Command(Descriptor(Op.NONE))
    lists: dict[str, list[Command]] = {unit: [] for unit in units}
    for stage in stages:
        for unit, commands in lists.items():
            first, *rest = stage.get(unit) or [nothing]
            commands += [joined(first), *rest]
    return lists


def stages_cycles(stages: Sequence[Stage], cores: Mapping[str, CoreGeometry]) -> int:
    """The expected cycles: in each stage those of the slowest core, the sum over its descriptors."""
    return sum(
        max(sum(command.descriptor.cycles(cores[unit]) for command in commands) for unit, commands in stage.items())
        for stage in stages
    )


def _paired(
    layers: Sequence[list[Command]], predictor: Sequence[list[Command]], cores: Mapping[str, CoreGeometry]
) -> list[Stage]:
    """Each layer, then the predictor for it; on its own core the predictor overlaps with the next layer."""
    if PREDICTOR not in cores:
        return [{MAIN: [*layer, *prediction]} for layer, prediction in zip(layers, predictor, strict=True)]
    nothing: list[Command] = []
    stages = zip_longest(layers, [nothing, *predictor], fillvalue=nothing)
    return [{unit: work for unit, work in zip((MAIN, PREDICTOR), stage, strict=True) if work} for stage in stages]
