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
from adagp.accelerator.rtl.program import Program
from adagp.accelerator.rtl.program_builder import ProgramBuilder
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
        builders = self._builders()
        for builder in builders.values():
            PredictorPasses(self._memory, builder).load()
            builder.barrier()
        stages: list[Stage] = []
        if "forward" in parts:
            stages += self._forward(builders, phase)
        if "backward" in parts and phase is not Phase.GP:
            stages += self._backward(builders)
        for stage in stages:
            for unit, builder in builders.items():
                if len(builders) > 1:
                    builder.barrier(join=True)
                for work in stage.get(unit, []):
                    work()
                    builder.barrier()
        return self._ended(builders)

    def _builders(self) -> dict[str, ProgramBuilder]:
        return {unit: ProgramBuilder(core) for unit, core in self._cores.items()}

    def _ended(self, builders: Mapping[str, ProgramBuilder]) -> dict[str, Program]:
        for builder in builders.values():
            builder.barrier(join=len(builders) > 1)
        return {unit: builder.program for unit, builder in builders.items()}

    def _forward(self, builders: Mapping[str, ProgramBuilder], phase: Phase) -> list[Stage]:
        layers, count = LayerPasses(self._memory, builders[MAIN]), range(len(self._memory.layers))
        forward = [partial(layers.forward, index) for index in count]
        if self._design is Design.BASELINE:
            return [{MAIN: [work]} for work in forward]
        predictor = PredictorPasses(self._memory, builders.get(PREDICTOR, builders[MAIN]))
        updates = phase is Phase.GP
        return self._paired(forward, [partial(predictor.predict, index, updates=updates) for index in count])

    def _backward(self, builders: Mapping[str, ProgramBuilder]) -> list[Stage]:
        layers, learns = LayerPasses(self._memory, builders[MAIN]), self._design is not Design.BASELINE
        count = list(reversed(range(len(self._memory.layers))))
        backward = [partial(layers.backward, index, learns=learns) for index in count]
        if not learns:
            return [{MAIN: [work]} for work in backward]
        predictor = PredictorPasses(self._memory, builders.get(PREDICTOR, builders[MAIN]))
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
