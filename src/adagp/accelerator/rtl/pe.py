"""The processing element: one stationary weight, one multiplication and one addition a cycle."""

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib.wiring import Component, In, Out


class PE(Component):
    """Adds `input x weight` to the sum from above, and passes the input and the sum on.

    Inputs move to the right and sums downwards, one PE a cycle. Weights are shifted upwards while `load` is high, so
    memory holds them in the order of the rows.
    """

    def __init__(self, width: int, sum_width: int) -> None:
        """A PE with operands of `width` bits and partial sums of `sum_width` bits."""
        self.module_name = f"pe_{width}_{sum_width}"
        super().__init__(
            {
                "load": In(1),
                "weight_below": In(signed(width)),
                "weight_above": Out(signed(width)),
                "input_left": In(signed(width)),
                "input_right": Out(signed(width)),
                "sum_above": In(signed(sum_width)),
                "sum_below": Out(signed(sum_width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Three registers; none needs a reset, as the controller decides which sums are written."""
        m = Module()
        weight = Signal.like(self.weight_below, reset_less=True)
        flowing = Signal.like(self.input_left, reset_less=True)
        total = Signal.like(self.sum_above, reset_less=True)
        with m.If(self.load):
            m.d.sync += weight.eq(self.weight_below)
        m.d.sync += [flowing.eq(self.input_left), total.eq(self.sum_above + self.input_left * weight)]
        m.d.comb += [
            self.weight_above.eq(weight),
            self.input_right.eq(flowing),
            self.sum_below.eq(total),
        ]
        return m
