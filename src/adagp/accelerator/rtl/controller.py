"""The controller of a core: takes descriptors and gives the addresses of every cycle.

A product runs as folds, one after the other without a gap. The weights of a fold are shifted in (R cycles), the inputs
stream (M), and the last of them crosses the array (R + C - 2). Memories answer a cycle after the address, so the
controller is one cycle ahead of the array. This cycle, and those until the last sum is written, are the overhead of a
descriptor.
"""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import LAYOUT, Mode, Op
from adagp.accelerator.rtl.geometry import COUNT_BITS, CoreGeometry


class Controller(Component):
    """A state machine with a counter for each address. Row r and column c follow its addresses r and c cycles later."""

    def __init__(self, geometry: CoreGeometry) -> None:
        """A controller for an array of `geometry.rows` by `geometry.columns`."""
        self._geometry = geometry
        self.module_name = f"controller_{geometry.rows}x{geometry.columns}{'_pools' if geometry.pools else ''}"
        super().__init__(
            {
                "descriptor": In(LAYOUT),
                "valid": In(1),
                "ready": Out(1),
                "busy": Out(1),
                "joins": Out(1),
                "other_joins": In(1),
                "words_valid": In(1),
                "words_ready": Out(1),
                "fills": Out(1),
                "current": Out(LAYOUT),
                "input_address": Out(COUNT_BITS),
                "weight_address": Out(COUNT_BITS),
                "output_address": Out(COUNT_BITS),
                "shifts_weights": Out(1),
                "streams": Out(1),
                "first": Out(1),
                "drains": Out(1),
                "drains_run": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A state machine with one state for each phase of an operation."""
        m = Module()
        size = self._geometry
        now = Signal(LAYOUT)
        step, run = Signal(COUNT_BITS), Signal(COUNT_BITS)
        k, n = Signal.like(now.k_folds), Signal.like(now.n_folds)
        input_address, weight_address, output_address = (Signal(COUNT_BITS) for _ in range(3))
        start_of_fold = Signal(COUNT_BITS)
        reads_weights = Signal()
        m.d.sync += self.shifts_weights.eq(reads_weights)
        m.d.comb += [
            self.current.eq(now),
            self.input_address.eq(input_address),
            self.weight_address.eq(weight_address),
            self.output_address.eq(output_address),
            self.first.eq((k == 0) & ~now.accumulate),
        ]

        def last(count: Any) -> Any:
            return step == count - 1

        def advance(count: Any, then: str) -> None:
            m.d.sync += step.eq(step + 1)
            with m.If(last(count)):
                m.d.sync += step.eq(0)
                m.next = then

        with m.FSM() as states:
            with m.State("IDLE"):
                new = self.descriptor
                go = ~new.join | self.other_joins
                m.d.comb += [self.joins.eq(self.valid & new.join), self.ready.eq(go)]
                with m.If(self.valid & go):
                    m.d.sync += [
                        now.eq(new),
                        step.eq(0),
                        run.eq(0),
                        k.eq(0),
                        n.eq(0),
                        input_address.eq(new.input_base),
                        weight_address.eq(new.weight_base),
                        output_address.eq(new.output_base),
                        start_of_fold.eq(new.output_base),
                    ]
                    with m.Switch(new.op):
                        with m.Case(Op.LOAD):
                            m.next = "LOAD"
                        with m.Case(Op.PRODUCT):
                            m.next = "WEIGHTS"
                        with m.Case(Op.DRAIN):
                            m.next = "DRAIN"
                        with m.Case(Op.NONE):
                            m.next = "SETTLE"
            with m.State("LOAD"):
                m.d.comb += [self.words_ready.eq(1), self.fills.eq(self.words_valid)]
                with m.If(self.words_valid):
                    m.d.sync += [input_address.eq(input_address + 1), weight_address.eq(weight_address + 1)]
                    advance(now.count, "SETTLE")
            with m.State("WEIGHTS"):
                m.d.comb += reads_weights.eq(1)
                m.d.sync += weight_address.eq(weight_address + 1)
                advance(size.rows, "STREAM")
            with m.State("STREAM"):
                m.d.comb += self.streams.eq(1)
                m.d.sync += [input_address.eq(input_address + 1), output_address.eq(output_address + 1)]
                advance(now.count, "CROSS")
            with m.State("CROSS"):
                crossing = size.rows + size.columns - 2
                advance(crossing, "WEIGHTS")
                with m.If(last(crossing)):
                    with m.If(k != now.k_folds - 1):
                        m.d.sync += [k.eq(k + 1), output_address.eq(start_of_fold)]
                    with m.Elif(n != now.n_folds - 1):
                        m.d.sync += [
                            k.eq(0),
                            n.eq(n + 1),
                            input_address.eq(now.input_base),
                            start_of_fold.eq(output_address),
                        ]
                    with m.Else():
                        m.next = "SETTLE"
            with m.State("DRAIN"):
                outside = ((now.mode == Mode.UPDATE) | (now.mode == Mode.MASK)) & ~now.in_place
                m.d.comb += self.words_ready.eq(outside)
                with m.If(self.words_valid | ~outside):
                    m.d.comb += self.drains.eq(1)
                    m.d.sync += [
                        weight_address.eq(weight_address + 1),
                        output_address.eq(output_address + 1),
                        run.eq(run + 1),
                    ]
                    advance(now.count, "SETTLE")
                    if size.pools:
                        with m.If(run == now.pool_run - 1):
                            m.next = "RUN"
            if size.pools:
                with m.State("RUN"):
                    m.d.comb += self.drains_run.eq(1)
                    m.d.sync += run.eq(0)
                    with m.If(step == 0):  # the run ended with the last row, which reset the counter
                        m.next = "SETTLE"
                    with m.Else():
                        m.next = "DRAIN"
            with m.State("SETTLE"):
                advance(2, "IDLE")
        m.d.comb += self.busy.eq(~states.ongoing("IDLE"))
        return m
