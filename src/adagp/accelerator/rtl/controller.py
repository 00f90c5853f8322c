"""The array's controller: takes products and gives the addresses of every cycle.

A product runs as folds, one after the other without a gap. The weights of a fold are shifted in (R cycles), the inputs
stream (M), and the last of them crosses the array (R + C - 2). Memories answer a cycle after the address, so the
controller is one cycle ahead of the array. This cycle, and those until the last sum is written, are the overhead of a
product.
"""

from typing import Any

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import DESCRIPTOR_BITS, Memory, Op, payload
from adagp.accelerator.rtl.geometry import COUNT_BITS, CoreGeometry
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.rtl.nest import Nest


class Controller(Component):
    """A state machine with an address generator for inputs and counters for the rest.

    Row r and column c follow its addresses r and c cycles later.
    """

    def __init__(self, geometry: CoreGeometry) -> None:
        """A controller for an array of `geometry.rows` by `geometry.columns`."""
        self._geometry = geometry
        self.module_name = f"controller_{geometry.rows}x{geometry.columns}"
        super().__init__(
            {
                "commands": In(stream.Signature(DESCRIPTOR_BITS)),
                "finished": Out(1),
                "idle": Out(1),
                "memory": Out(Memory),
                "half": Out(1),
                "input_address": Out(COUNT_BITS),
                "offsets": Out(COUNT_BITS).array(geometry.rows),
                "weight_address": Out(COUNT_BITS),
                "output_address": Out(COUNT_BITS),
                "shifts_weights": Out(1),
                "streams": Out(1),
                "first": Out(1),
            }
        )

    def elaborate(self, platform: Library | None) -> Module:
        """A state machine with one state for each phase of a fold."""
        m = Module()
        size = self._geometry
        product, offset = (payload(op, self.commands.payload) for op in (Op.PRODUCT, Op.OFFSET))
        nest = place(m, "nest", platform, Nest, COUNT_BITS)
        now = Signal(product.shape())
        step, k, n = (Signal(COUNT_BITS, name=name) for name in ("step", "k", "n"))
        weight_address, output_address, start_of_fold = (
            Signal(COUNT_BITS, name=name) for name in ("next_weight", "next_output", "start_of_fold")
        )
        offsets = Array(Signal(COUNT_BITS, name=f"offset_{r}") for r in range(size.rows))
        reads_weights = Signal()
        m.d.sync += self.shifts_weights.eq(reads_weights)
        m.d.comb += [
            nest.level.eq(payload(Op.LEVEL, self.commands.payload)),
            nest.base.eq(product.input_base),
            nest.steps.eq(self.streams),
            self.memory.eq(now.memory),
            self.half.eq(now.half),
            self.input_address.eq(nest.address),
            self.weight_address.eq(weight_address),
            self.output_address.eq(output_address),
            self.first.eq((k == 0) & ~now.accumulate),
            *(self.offsets[r].eq(offsets[r]) for r in range(size.rows)),
        ]

        def advance(count: Any, then: str) -> Any:
            last = step == count - 1
            m.d.sync += step.eq(step + 1)
            with m.If(last):
                m.d.sync += step.eq(0)
                m.next = then
            return last

        with m.FSM() as states:
            with m.State("IDLE"):
                m.d.comb += self.commands.ready.eq(1)
                with m.If(self.commands.valid), m.Switch(product.op):
                    with m.Case(Op.LEVEL):
                        m.d.comb += nest.configures.eq(1)
                    with m.Case(Op.OFFSET):
                        m.d.sync += offsets[offset.row].eq(offset.offset)
                    with m.Case(Op.PRODUCT):
                        m.d.comb += nest.starts.eq(1)
                        m.d.sync += [
                            now.eq(product),
                            step.eq(0),
                            k.eq(0),
                            n.eq(0),
                            weight_address.eq(product.weight_base),
                            output_address.eq(0),
                            start_of_fold.eq(0),
                        ]
                        m.next = "WEIGHTS"
            with m.State("WEIGHTS"):
                m.d.comb += reads_weights.eq(1)
                m.d.sync += weight_address.eq(weight_address + 1)
                advance(size.rows, "STREAM")
            with m.State("STREAM"):
                m.d.comb += self.streams.eq(1)
                m.d.sync += output_address.eq(output_address + 1)
                advance(now.count, "CROSS")
            with m.State("CROSS"), m.If(advance(size.rows + size.columns - 2, "WEIGHTS")):
                with m.If(k != now.k_folds - 1):
                    m.d.sync += [k.eq(k + 1), output_address.eq(start_of_fold)]
                with m.Elif(n != now.n_folds - 1):
                    m.d.sync += [k.eq(0), n.eq(n + 1), start_of_fold.eq(output_address)]
                with m.Else():
                    m.next = "SETTLE"
            with m.State("SETTLE"), m.If(advance(2, "IDLE")):
                m.d.comb += self.finished.eq(1)
        m.d.comb += self.idle.eq(states.ongoing("IDLE"))
        return m
