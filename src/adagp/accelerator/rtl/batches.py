"""A GP and a BP batch on each design, as stages: a stage begins when every core has finished the one before.

In MAX a layer's prediction overlaps with the next layer's forward. Its learning overlaps with the backward after the
layer's own, because it needs the layer's true gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.passes import LayerPasses, PredictorPasses
from adagp.accelerator.rtl.pipeline import Pipeline
from adagp.accelerator.rtl.program import Program
from adagp.accelerator.rtl.top import MAIN, PREDICTOR
from adagp.schedules import Phase

Stage = dict[str, list[Callable[[], None]]]
"""The passes of each core in one stage, one after the other."""


class BatchPrograms:
    """Builds the programs of batches for a design."""

    def __init__(self, design: Design, cores: Mapping[str, CoreGeometry], memory: MemoryMap) -> None:
        """Programs for a network and batch as they lie in DRAM."""
        self._design, self._cores, self._memory = design, dict(cores), memory

    def batch(self, phase: Phase, parts: Sequence[str] = ("forward", "backward")) -> dict[str, Program]:
        """The programs of a batch, or of its forward or backward alone.

        They begin with what is needed once after a reset: the predictor that stays on the chip is loaded, and the
        pooling memory is cleared.

        Raises:
            ValueError: If a GP batch is asked of the baseline.
        """
        if self._design is Design.BASELINE and phase is Phase.GP:
            raise ValueError("phase=gp: the baseline has no predictor; choose another design, or phase bp")
        lines = self._lines()
        for line in lines.values():
            PredictorPasses(self._memory, line).load()
            line.barrier()
        stages: list[Stage] = []
        if "forward" in parts:
            stages += self._forward(lines, phase)
        if "backward" in parts and phase is not Phase.GP:
            stages += self._backward(lines)
        for stage in stages:
            for unit, line in lines.items():
                if len(lines) > 1:
                    line.barrier(join=True)
                for work in stage.get(unit, []):
                    work()
                    line.barrier()
        return self._ended(lines)

    def _lines(self) -> dict[str, Pipeline]:
        return {unit: Pipeline(core) for unit, core in self._cores.items()}

    def _ended(self, lines: Mapping[str, Pipeline]) -> dict[str, Program]:
        for line in lines.values():
            line.barrier(join=len(lines) > 1)
        return {unit: line.program for unit, line in lines.items()}

    def _forward(self, lines: Mapping[str, Pipeline], phase: Phase) -> list[Stage]:
        layers, count = LayerPasses(self._memory, lines[MAIN]), range(len(self._memory.layers))
        forward = [partial(layers.forward, index) for index in count]
        if self._design is Design.BASELINE:
            return [{MAIN: [work]} for work in forward]
        predictor = PredictorPasses(self._memory, lines.get(PREDICTOR, lines[MAIN]))
        updates = phase is Phase.GP
        return self._paired(forward, [partial(predictor.predict, index, updates=updates) for index in count])

    def _backward(self, lines: Mapping[str, Pipeline]) -> list[Stage]:
        layers, learns = LayerPasses(self._memory, lines[MAIN]), self._design is not Design.BASELINE
        count = list(reversed(range(len(self._memory.layers))))
        backward = [partial(layers.backward, index, learns=learns) for index in count]
        if not learns:
            return [{MAIN: [work]} for work in backward]
        predictor = PredictorPasses(self._memory, lines.get(PREDICTOR, lines[MAIN]))
        return self._paired(backward, [partial(predictor.learn, index) for index in count])

    def _paired(self, layers: Sequence[Callable[[], None]], predictor: Sequence[Callable[[], None]]) -> list[Stage]:
        """Each layer, then the predictor for it; on its own core the predictor overlaps with the next layer."""
        if PREDICTOR not in self._cores:
            return [{MAIN: [layer, prediction]} for layer, prediction in zip(layers, predictor, strict=True)]
        stages = zip_longest(layers, [None, *predictor])
        return [
            {unit: [work] for unit, work in zip((MAIN, PREDICTOR), stage, strict=True) if work is not None}
            for stage in stages
        ]
