"""The top modules: the baseline and the three ADA-GP designs, composed of the same cores.

- `baseline`: one core.
- `low`: one core whose lanes can pool. The predictor's weights are loaded when needed.
- `efficient`: as `low`, with a second weight memory in which the predictor's weights stay.
- `max`: as `low`, with a second, smaller core, which holds the predictor's weights and works at the same time.
"""

from collections.abc import Mapping
from dataclasses import replace

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, Out, connect, flipped

from adagp.accelerator.designs import Design
from adagp.accelerator.machine import Machine
from adagp.accelerator.rtl.core import Core, core_ports
from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.workload import PredictorShape

MAIN, PREDICTOR = "main", "predictor"
PREDICTOR_INPUTS, PREDICTOR_OUTPUTS = PredictorShape().features + 1, 4609
"""Sizes of the predictor's linear layer: its features and a constant; 512 x 3 x 3 weights and a bias."""
POOL_DEPTH = 64
"""Words per bank of the pooling memory: a grid of 4 x 4 cells for four folds of columns."""
_PAPER = Machine()


def geometries(
    design: Design,
    array: tuple[int, int] = (_PAPER.array.rows, _PAPER.array.columns),
    second_array: tuple[int, int] = (_PAPER.second_array.rows, _PAPER.second_array.columns),
) -> dict[str, CoreGeometry]:
    """The cores of a design, with memories of default size.

    Raises:
        ValueError: If an array cannot be built.
    """
    main = CoreGeometry(*array, pool_depth=0 if design is Design.BASELINE else POOL_DEPTH)
    if design is Design.EFFICIENT:
        return {MAIN: replace(main, predictor_depth=_predictor_depth(*array))}
    if design is Design.MAX:
        second = CoreGeometry(
            *second_array,
            input_depth=4096,
            weight_depth=4096,
            output_depth=512,
            old_depth=1024,
            predictor_depth=_predictor_depth(*second_array),
        )
        return {MAIN: main, PREDICTOR: second}
    return {MAIN: main}


def _predictor_depth(rows: int, columns: int) -> int:
    """Words per bank for the predictor's linear layer, rounded up to whole blocks of RAM."""
    return folds(folds(PREDICTOR_INPUTS, min(rows, columns)) * PREDICTOR_OUTPUTS, 1024) * 1024


class Accelerator(Component):
    """One core or two. The ports of each are named after it: `main.descriptors`, `predictor.requests`."""

    def __init__(self, cores: Mapping[str, CoreGeometry], name: str = "accelerator") -> None:
        """An accelerator of cores such as `geometries` gives."""
        self.module_name = name
        self._cores = dict(cores)
        super().__init__({unit: Out(core_ports(geometry)) for unit, geometry in cores.items()})

    def elaborate(self, platform: Library | None) -> Module:
        """Connect the ports; cores wait for each other at barriers that join them."""
        m = Module()
        placed = {unit: place(m, unit, platform, Core, geometry) for unit, geometry in self._cores.items()}
        for unit, core in placed.items():
            others = [other for other in placed.values() if other is not core]
            m.d.comb += core.other_joins.eq(others[0].joins if others else 1)
            connect(m, core.outer, flipped(getattr(self, unit)))
        return m
