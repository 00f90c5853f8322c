"""The lane after each column: rounds sums to operands, updates weights, pools runs."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import Mode
from adagp.accelerator.rtl.geometry import SHIFT_BITS, CoreGeometry


class Lane(Component):
    """Rounds a sum to an operand, applies the mode, and registers the result.

    The learning rate is a power of two and part of the shift, so an update needs no multiplier.
    """

    def __init__(self, geometry: CoreGeometry) -> None:
        """A lane of the widths of `geometry`, with a pooling adder if it pools."""
        self._geometry = geometry
        width, sum_width = geometry.width, geometry.sum_width
        self.module_name = f"lane_{width}_{sum_width}{'_pools' if geometry.pools else ''}"
        super().__init__(
            {
                "adds_to_run": In(1),
                "takes_run": In(1),
                "mode": In(2),
                "shift": In(SHIFT_BITS),
                "sum": In(signed(sum_width)),
                "old": In(signed(width)),
                "result": Out(signed(width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Round, saturate, apply the mode."""
        m = Module()
        width = self._geometry.width
        source = self._pool(m) if self._geometry.pools else self.sum
        doubled = Signal(signed(len(source) + 1))
        m.d.comb += doubled.eq(source << 1)
        rounded = Signal(signed(len(source) + 1))
        m.d.comb += rounded.eq(((doubled >> self.shift) + 1) >> 1)
        operand = _saturated(m, rounded, width)
        updated = _saturated(m, self.old - operand, width)
        result = Signal(signed(width), reset_less=True)
        with m.Switch(Mux(self.takes_run, Mode.PLAIN, self.mode)):
            with m.Case(Mode.PLAIN):
                m.d.sync += result.eq(operand)
            with m.Case(Mode.RELU):
                m.d.sync += result.eq(Mux(operand < 0, 0, operand))
            with m.Case(Mode.UPDATE):
                m.d.sync += result.eq(updated)
            with m.Case(Mode.MASK):
                m.d.sync += result.eq(Mux(self.old > 0, operand, 0))
        m.d.comb += self.result.eq(result)
        return m

    def _pool(self, m: Module) -> Any:
        """The value to round: the current sum, or at the end of a run the sum of the run."""
        run = Signal.like(self.sum)
        with m.If(self.adds_to_run):
            m.d.sync += run.eq(run + self.sum)
        with m.If(self.takes_run):
            m.d.sync += run.eq(0)
        source = Signal.like(run)
        m.d.comb += source.eq(Mux(self.takes_run, run, self.sum))
        return source


def _saturated(m: Module, value: Any, width: int) -> Any:
    """The nearest value that `width` bits hold."""
    most = (1 << (width - 1)) - 1
    result = Signal(signed(width))
    m.d.comb += result.eq(Mux(value > most, most, Mux(value < -most - 1, -most - 1, value)))
    return result
