"""An address generator: loops inside each other, each of which adds its stride to the address."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import LAYOUTS, LEVELS, Op
from adagp.accelerator.rtl.geometry import COUNT_BITS


class Nest(Component):
    """`LEVELS` loops, level 0 the innermost. After the last iteration of all, it starts again from the base."""

    def __init__(self, bits: int, stride: str = "stride") -> None:
        """A generator of addresses of `bits` bits, which takes its strides from the given field of a `LEVEL`."""
        self._bits, self._stride = bits, stride
        self.module_name = f"nest_{bits}_{stride}"
        super().__init__(
            {
                "configures": In(1),
                "level": In(LAYOUTS[Op.LEVEL]),
                "starts": In(1),
                "base": In(bits),
                "steps": In(1),
                "address": Out(bits),
                "inside": Out(1),
                "at_end": Out(LEVELS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Of the loops, the innermost that is not at its end steps; those inside it start again."""
        m = Module()
        base = Signal(self._bits)
        counts = [Signal(COUNT_BITS, init=1, name=f"count_{i}") for i in range(LEVELS)]
        strides = [Signal(self._bits, name=f"stride_{i}") for i in range(LEVELS)]
        lows = [Signal(COUNT_BITS, name=f"low_{i}") for i in range(LEVELS)]
        highs = [Signal(COUNT_BITS, init=1, name=f"high_{i}") for i in range(LEVELS)]
        with m.If(self.configures), m.Switch(self.level.level):
            for i in range(LEVELS):
                with m.Case(i):
                    m.d.sync += [
                        counts[i].eq(self.level.count),
                        strides[i].eq(getattr(self.level, self._stride)),
                        lows[i].eq(self.level.low),
                        highs[i].eq(self.level.high),
                    ]
        steps = [Signal(COUNT_BITS, name=f"step_{i}") for i in range(LEVELS)]
        addresses = [Signal(self._bits, name=f"address_{i}") for i in range(LEVELS)]
        at_end = [step == count - 1 for step, count in zip(steps, counts, strict=True)]
        following = Signal(self._bits)
        chosen, added = base, 0
        for i in reversed(range(LEVELS)):
            chosen, added = Mux(at_end[i], chosen, addresses[i]), Mux(at_end[i], added, strides[i])
        m.d.comb += [
            following.eq(chosen + added),
            self.address.eq(addresses[0]),
            self.at_end.eq(Cat(*at_end)),
            self.inside.eq(
                Cat(*((low <= s) & (s < high) for low, s, high in zip(lows, steps, highs, strict=True))).all()
            ),
        ]
        with m.If(self.steps):
            inner_end: Any = 1
            for i in range(LEVELS):
                with m.If(inner_end):
                    m.d.sync += [addresses[i].eq(following), steps[i].eq(Mux(at_end[i], 0, steps[i] + 1))]
                inner_end = inner_end & at_end[i]
        # Loops inside the one that steps take its new address: `following` is that of the innermost not at its end.
        with m.If(self.starts):
            m.d.sync += [base.eq(self.base), *(each.eq(self.base) for each in addresses), *(s.eq(0) for s in steps)]
        return m
