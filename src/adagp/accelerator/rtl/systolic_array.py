"""The systolic array: inputs enter from the left, partial sums from above."""

from amaranth.hdl import Module, signed
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.rtl.pe import PE


class SystolicArray(Component):
    """A grid of PEs. Row r takes its inputs r cycles after row 0, and column c its sums c cycles after column 0."""

    def __init__(self, geometry: CoreGeometry) -> None:
        """An array of `geometry.rows` by `geometry.columns` PEs."""
        self._geometry = geometry
        rows, columns, width, sum_width = geometry.rows, geometry.columns, geometry.width, geometry.sum_width
        self.module_name = f"array_{rows}x{columns}_{width}_{sum_width}"
        super().__init__(
            {
                "load": In(1),
                "weights": In(signed(width)).array(columns),
                "inputs": In(signed(width)).array(rows),
                "sums_above": In(signed(sum_width)).array(columns),
                "sums_below": Out(signed(sum_width)).array(columns),
            }
        )

    def elaborate(self, platform: Library | None) -> Module:
        """Connect neighbours."""
        m = Module()
        size, columns = self._geometry, range(self._geometry.columns)
        pes = [
            [place(m, f"pe_{r}_{c}", platform, PE, size.width, size.sum_width) for c in columns]
            for r in range(size.rows)
        ]
        for r, row in enumerate(pes):
            for c, pe in enumerate(row):
                m.d.comb += [
                    pe.load.eq(self.load),
                    pe.input_left.eq(row[c - 1].input_right if c else self.inputs[r]),
                    pe.sum_above.eq(pes[r - 1][c].sum_below if r else self.sums_above[c]),
                    pe.weight_below.eq(pes[r + 1][c].weight_above if r + 1 < size.rows else self.weights[c]),
                ]
        m.d.comb += [self.sums_below[c].eq(pes[-1][c].sum_below) for c in columns]
        return m
