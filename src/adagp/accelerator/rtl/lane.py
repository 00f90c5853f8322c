"""The lane after each column: rounds sums to operands, updates weights, pools."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import Mode
from adagp.accelerator.rtl.geometry import SHIFT_BITS, CoreGeometry


class Lane(Component):
    """Rounds a sum to an operand, applies the mode, and registers the result.

    The learning rate is a power of two and part of the shift, so an update needs no multiplier. A lane that pools adds
    the sum to a word of the pooling memory, or rounds such a word instead.
    """

    def __init__(self, geometry: CoreGeometry) -> None:
        """A lane of the widths of `geometry`, with a pooling adder if it pools."""
        self._geometry = geometry
        width, sum_width = geometry.width, geometry.sum_width
        self._pools = geometry.pool_depth > 0
        self.module_name = f"lane_{width}_{sum_width}{'_pools' if self._pools else ''}"
        pooling = {
            "pooled": In(signed(sum_width)),
            "again": In(1),
            "from_pool": In(1),
            "total": Out(signed(sum_width)),
        }
        super().__init__(
            {
                "advances": In(1),
                "mode": In(Mode),
                "shift": In(SHIFT_BITS),
                "sum": In(signed(sum_width)),
                "old": In(signed(width)),
                "result": Out(signed(width)),
                **(pooling if self._pools else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Round, saturate, apply the mode."""
        m = Module()
        width = self._geometry.width
        source = self._pool(m) if self._pools else self.sum
        doubled = Signal(signed(len(source) + 1))
        m.d.comb += doubled.eq(source << 1)
        rounded = Signal(signed(len(source) + 1))
        m.d.comb += rounded.eq(((doubled >> self.shift) + 1) >> 1)
        operand = _saturated(m, rounded, width)
        updated = _saturated(m, self.old - operand, width)
        result = Signal(signed(width), reset_less=True)
        with m.If(self.advances), m.Switch(self.mode):
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
        """The value to round: the sum, or a word of the pooling memory.

        The memory is a cycle behind, so a word that the row before has changed comes from a register.
        """
        recent = Signal.like(self.sum, reset_less=True)
        m.d.comb += self.total.eq(Mux(self.again, recent, self.pooled) + self.sum)
        with m.If(self.advances):
            m.d.sync += recent.eq(self.total)
        source = Signal.like(self.sum)
        m.d.comb += source.eq(Mux(self.from_pool, self.pooled, self.sum))
        return source


def _saturated(m: Module, value: Any, width: int) -> Any:
    """The nearest value that `width` bits hold."""
    most = (1 << (width - 1)) - 1
    result = Signal(signed(width))
    m.d.comb += result.eq(Mux(value > most, most, Mux(value < -most - 1, -most - 1, value)))
    return result
