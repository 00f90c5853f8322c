"""The top modules: the baseline and the three ADA-GP designs, composed of the same cores.

- `baseline`: one core.
- `low`: one core whose lanes can pool. The predictor's weights are loaded when needed.
- `efficient`: as `low`, with a second weight memory in which the predictor's weights stay.
- `max`: as `low`, with a second, smaller core, which holds the predictor's weights and works at the same time.
"""

from collections.abc import Mapping
from dataclasses import replace

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, Flow

from adagp.accelerator.designs import Design
from adagp.accelerator.machine import Machine
from adagp.accelerator.rtl.core import Core, outer_ports
from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.workload import PredictorShape

MAIN, PREDICTOR = "main", "predictor"
PREDICTOR_INPUTS, PREDICTOR_OUTPUTS = PredictorShape().features + 1, 4609
"""Sizes of the predictor's linear layer: its features and a constant; 512 x 3 x 3 weights and a bias."""
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
    main = CoreGeometry(*array, pools=design is not Design.BASELINE)
    if design is Design.EFFICIENT:
        return {MAIN: replace(main, predictor_depth=_predictor_depth(*array))}
    if design is Design.MAX:
        second = CoreGeometry(
            *second_array, input_depth=2048, weight_depth=_predictor_depth(*second_array), output_depth=512
        )
        return {MAIN: main, PREDICTOR: second}
    return {MAIN: main}


def _predictor_depth(rows: int, columns: int) -> int:
    """Words per bank for the predictor's linear layer and 3 x 3 convolution, rounded up to a power of two."""
    words = folds(PREDICTOR_INPUTS, rows) * rows * folds(PREDICTOR_OUTPUTS, columns) + folds(9, rows) * rows
    return 1 << (words - 1).bit_length()


class Accelerator(Component):
    """One core or two. The ports of each have its name as prefix: `main_valid`, `predictor_words__0`."""

    def __init__(self, cores: Mapping[str, CoreGeometry], name: str = "accelerator") -> None:
        """An accelerator of cores such as `geometries` gives."""
        self.module_name = name
        self._cores = dict(cores)
        ports = {unit: outer_ports(geometry) for unit, geometry in cores.items()}
        super().__init__({f"{unit}_{port}": member for unit in ports for port, member in ports[unit].items()})

    def elaborate(self, platform: Library | None) -> Module:
        """Connect the ports; cores start together if their descriptors are joined."""
        m = Module()
        placed = {unit: place(m, unit, platform, Core, geometry) for unit, geometry in self._cores.items()}
        for unit, core in placed.items():
            others = [other for other in placed.values() if other is not core]
            m.d.comb += core.other_joins.eq(others[0].joins if others else 1)
            for port, member in outer_ports(self._cores[unit]).items():
                inner, outer = (
                    pins if member.dimensions else [pins]
                    for pins in (getattr(core, port), getattr(self, f"{unit}_{port}"))
                )
                for inside, outside in zip(inner, outer, strict=True):
                    m.d.comb += outside.eq(inside) if member.flow is Flow.Out else inside.eq(outside)
        return m
