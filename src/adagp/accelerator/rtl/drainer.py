"""The drainer: reads rows of sums, and writes what the lanes make of them to DRAM."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import DESCRIPTOR_BITS, LEVELS, Mode, Op, payload
from adagp.accelerator.rtl.geometry import ADDRESS_BITS, COUNT_BITS, SHIFT_BITS, CoreGeometry
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.rtl.loader import REQUEST
from adagp.accelerator.rtl.nest import Nest


class Drainer(Component):
    """A pipeline of three stages: the memories are read, the lanes compute, the beat is written.

    All stages stand still while DRAM does not take a beat, so none is lost.
    """

    def __init__(self, geometry: CoreGeometry) -> None:
        """A drainer, with an address generator for the pooling memory if there is one."""
        self._pools = geometry.pool_depth > 0
        self.module_name = f"drainer{'_pools' if self._pools else ''}"
        pooling = {
            "from_pool": Out(1),
            "pool_address": Out(COUNT_BITS),
            "pool_again": Out(1),
            "pool_writes": Out(1),
            "pool_clears": Out(1),
            "pool_write_address": Out(COUNT_BITS),
        }
        super().__init__(
            {
                "commands": In(stream.Signature(DESCRIPTOR_BITS)),
                "finished": Out(1),
                "idle": Out(1),
                "advances": Out(1),
                "reads_sums": Out(1),
                "half": Out(1),
                "output_address": Out(COUNT_BITS),
                "old_address": Out(COUNT_BITS),
                "in_place": Out(1),
                "mode": Out(Mode),
                "shift": Out(SHIFT_BITS),
                "writes": Out(stream.Signature(REQUEST)),
                "back_writes": Out(1),
                "back_address": Out(COUNT_BITS),
                **(pooling if self._pools else {}),
            }
        )

    def elaborate(self, platform: Library | None) -> Module:
        """Addresses in the first stage, registers for them in the others."""
        m = Module()
        drain = payload(Op.DRAIN, self.commands.payload)
        level = payload(Op.LEVEL, self.commands.payload)
        nest = place(m, "nest", platform, Nest, ADDRESS_BITS)
        now = Signal(drain.shape())
        row, output_address, old_address = (
            Signal(COUNT_BITS, name=name) for name in ("row", "next_output", "next_old")
        )
        reads = Signal()
        computes, computed = Signal(REQUEST), Signal(REQUEST)
        valid_1, valid_2 = Signal(), Signal()
        old_1, old_2 = Signal(COUNT_BITS), Signal(COUNT_BITS)
        m.d.comb += [
            nest.level.eq(level),
            nest.base.eq(drain.base),
            nest.steps.eq(reads & self.advances),
            self.advances.eq(~valid_2 | self.writes.ready),
            self.reads_sums.eq(~self.idle & ~now.from_pool),
            self.half.eq(now.half),
            self.output_address.eq(output_address),
            self.old_address.eq(old_address),
            self.in_place.eq(now.in_place & ~self.idle),
            self.mode.eq(now.mode),
            self.shift.eq(now.shift),
            self.writes.valid.eq(valid_2),
            self.writes.payload.eq(computed),
            self.back_writes.eq(valid_2 & self.writes.ready & now.in_place),
            self.back_address.eq(old_2),
        ]
        with m.If(self.advances):
            m.d.sync += [
                valid_1.eq(reads),
                computes.address.eq(nest.address),
                computes.words.eq(Mux(nest.at_end[LEVELS - 1], now.tail, now.words)),
                old_1.eq(old_address),
                valid_2.eq(valid_1),
                computed.eq(computes),
                old_2.eq(old_1),
            ]
        starts = Signal()
        with m.FSM() as states:
            with m.State("IDLE"):
                m.d.comb += self.commands.ready.eq(1)
                with m.If(self.commands.valid):
                    m.d.comb += nest.configures.eq(drain.op == Op.LEVEL)
                    with m.If(drain.op == Op.DRAIN):
                        m.d.comb += [starts.eq(1), nest.starts.eq(1)]
                        m.d.sync += [
                            now.eq(drain),
                            row.eq(0),
                            output_address.eq(drain.output_base),
                            old_address.eq(drain.old_base),
                        ]
                        m.next = "READ"
            with m.State("READ"):
                m.d.comb += reads.eq(1)
                with m.If(self.advances):
                    m.d.sync += [
                        row.eq(row + 1),
                        output_address.eq(output_address + 1),
                        old_address.eq(old_address + 1),
                    ]
                    with m.If(row == now.count - 1):
                        m.next = "FLUSH"
            with m.State("FLUSH"), m.If(self.writes.valid & self.writes.ready & ~valid_1):
                m.d.comb += self.finished.eq(1)
                m.next = "IDLE"
        m.d.comb += self.idle.eq(states.ongoing("IDLE"))
        if self._pools:
            self._pool(m, platform, now, level, starts, reads, valid_1)
        return m

    def _pool(
        self, m: Module, platform: Library | None, now: Any, level: Any, starts: Any, reads: Any, valid_1: Any
    ) -> None:
        """The addresses of the pooling memory: rows of a cell add to the same word."""
        nest = place(m, "pool_nest", platform, Nest, COUNT_BITS, "pool_stride")
        address_1, again = Signal(COUNT_BITS), Signal()
        m.d.comb += [
            nest.level.eq(level),
            nest.configures.eq((level.op == Op.LEVEL) & self.commands.valid & self.commands.ready),
            nest.starts.eq(starts),
            nest.base.eq(payload(Op.DRAIN, self.commands.payload).pool_base),
            nest.steps.eq(reads & self.advances),
            self.from_pool.eq(now.from_pool),
            self.pool_address.eq(Mux(now.from_pool, self.output_address, nest.address)),
            self.pool_again.eq(again),
            self.pool_writes.eq(valid_1 & self.advances & (now.pools | now.clears)),
            self.pool_clears.eq(now.clears),
            self.pool_write_address.eq(address_1),
        ]
        with m.If(self.advances):
            m.d.sync += [
                address_1.eq(self.pool_address),
                again.eq(reads & valid_1 & (address_1 == self.pool_address)),
            ]
