"""The dispatcher: takes descriptors in order, queues them for their units, and counts the tokens between these."""

from itertools import permutations
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import DESCRIPTOR_BITS, Op, Unit, payload

QUEUE = 8
"""Descriptors that wait for each unit."""
_TOKEN_BITS = 3


class Dispatcher(Component):
    """A queue for each unit, and a counter for each pair of units.

    A descriptor that waits for a token comes after the one that gives it, so the queues cannot block each other.
    """

    def __init__(self, queue: int = QUEUE) -> None:
        """The same for every core; only proofs have shorter queues."""
        self._queue = queue
        self.module_name = "dispatcher"
        super().__init__(
            {
                "descriptors": In(stream.Signature(DESCRIPTOR_BITS)),
                "commands": Out(stream.Signature(DESCRIPTOR_BITS)).array(len(Unit)),
                "finished": In(1).array(len(Unit)),
                "idle": In(1).array(len(Unit)),
                "joins": Out(1),
                "other_joins": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Barriers are kept back; everything else goes to the queue of its unit."""
        m = Module()
        new = payload(Op.BARRIER, self.descriptors.payload)
        barrier = new.op == Op.BARRIER
        queues, resting = {}, []
        tokens = {
            pair: Signal(_TOKEN_BITS, name=f"tokens_{pair[0].name}_{pair[1].name}") for pair in permutations(Unit, 2)
        }
        given, taken = (
            {pair: Signal(name=f"{what}_{pair[0].name}_{pair[1].name}") for pair in tokens}
            for what in ("gives", "takes")
        )
        for unit in Unit:
            m.submodules[f"queue_{unit.name.lower()}"] = queue = queues[unit] = SyncFIFO(
                width=DESCRIPTOR_BITS, depth=self._queue
            )
            chosen = ~barrier & (new.unit == unit)
            m.d.comb += [queue.w_data.eq(self.descriptors.payload), queue.w_en.eq(self.descriptors.valid & chosen)]
            head = payload(Op.BARRIER, queue.r_data)
            others = [other for other in Unit if other is not unit]
            free: Any = 1
            for other in others:
                free = free & (~head.waits[other] | (tokens[other, unit] != 0))
            command = self.commands[unit]
            starts = Signal(name=f"starts_{unit.name}")
            signals = Signal(3, name=f"signals_{unit.name}")
            m.d.comb += [
                command.payload.eq(queue.r_data),
                command.valid.eq(queue.r_rdy & free),
                queue.r_en.eq(starts),
                starts.eq(command.valid & command.ready),
            ]
            with m.If(starts):
                m.d.sync += signals.eq(head.signals)
            for other in others:
                m.d.comb += [
                    taken[other, unit].eq(starts & head.waits[other]),
                    given[unit, other].eq(self.finished[unit] & signals[other]),
                ]
            resting.append(~queue.r_rdy & self.idle[unit])
        for pair, count in tokens.items():
            m.d.sync += count.eq(count + given[pair] - taken[pair])
        all_rest = resting[0] & resting[1] & resting[2]
        at_join = Signal()
        m.d.comb += [
            at_join.eq(self.descriptors.valid & barrier & new.join & all_rest),
            self.joins.eq(at_join),
            self.descriptors.ready.eq(
                Mux(barrier, all_rest & (~new.join | self.other_joins), 0)
                | sum(((new.unit == unit) & ~barrier & queue.w_rdy) for unit, queue in queues.items())
            ),
        ]
        return m
