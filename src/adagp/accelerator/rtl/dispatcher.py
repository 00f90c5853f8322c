"""The dispatcher: takes descriptors in order, queues them for their units, and counts the tokens between these."""

from collections.abc import Mapping
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
        queues, tokens = {}, _Tokens()
        for unit in Unit:
            queues[unit] = self._add_queue(m, unit, ~barrier & (new.unit == unit))
            self._give_commands(m, unit, queues[unit], tokens)
        tokens.count(m)
        self._accept(m, new, barrier, queues)
        return m

    def _add_queue(self, m: Module, unit: Unit, is_its: Any) -> SyncFIFO:
        """The queue of a unit, which takes the descriptors that are its."""
        queue = SyncFIFO(width=DESCRIPTOR_BITS, depth=self._queue)
        m.submodules[f"queue_{unit.name.lower()}"] = queue
        m.d.comb += [queue.w_data.eq(self.descriptors.payload), queue.w_en.eq(self.descriptors.valid & is_its)]
        return queue

    def _give_commands(self, m: Module, unit: Unit, queue: SyncFIFO, tokens: "_Tokens") -> None:
        """A unit is given the head of its queue once the tokens are there; when it is done, it gives others theirs."""
        head, command = payload(Op.BARRIER, queue.r_data), self.commands[unit]
        others = [other for other in Unit if other is not unit]
        free: Any = 1
        for other in others:
            free = free & (~head.waits[other] | (tokens.counts[other, unit] != 0))
        starts = Signal(name=f"starts_{unit.name}")
        signals = Signal(len(Unit), name=f"signals_{unit.name}")
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
                tokens.taken[other, unit].eq(starts & head.waits[other]),
                tokens.given[unit, other].eq(self.finished[unit] & signals[other]),
            ]

    def _accept(self, m: Module, new: Any, barrier: Any, queues: Mapping[Unit, SyncFIFO]) -> None:
        """A descriptor is taken if its queue has room; a barrier once all units rest, and the other core joins."""
        first, second, third = (~queue.r_rdy & self.idle[unit] for unit, queue in queues.items())
        all_rest = first & second & third
        at_join = Signal()
        m.d.comb += [
            at_join.eq(self.descriptors.valid & barrier & new.join & all_rest),
            self.joins.eq(at_join),
            self.descriptors.ready.eq(
                Mux(barrier, all_rest & (~new.join | self.other_joins), 0)
                | sum(((new.unit == unit) & ~barrier & queue.w_rdy) for unit, queue in queues.items())
            ),
        ]


class _Tokens:
    """How many tokens each unit has from each other one, and whether one is given or taken in this cycle."""

    def __init__(self) -> None:
        pairs = list(permutations(Unit, 2))
        self.counts = {(a, b): Signal(_TOKEN_BITS, name=f"tokens_{a.name}_{b.name}") for a, b in pairs}
        self.given = {(a, b): Signal(name=f"gives_{a.name}_{b.name}") for a, b in pairs}
        self.taken = {(a, b): Signal(name=f"takes_{a.name}_{b.name}") for a, b in pairs}

    def count(self, m: Module) -> None:
        for pair, count in self.counts.items():
            m.d.sync += count.eq(count + self.given[pair] - self.taken[pair])
