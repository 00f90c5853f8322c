"""The loader: reads DRAM at the addresses of its loops, and fills a memory of the core."""

from amaranth.hdl import Array, Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.descriptor import DESCRIPTOR_BITS, Memory, Op, payload
from adagp.accelerator.rtl.geometry import ADDRESS_BITS, COUNT_BITS, MOST_BANKS, CoreGeometry
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.rtl.nest import Nest

WORDS_BITS = MOST_BANKS.bit_length()
REQUEST = data.StructLayout({"address": ADDRESS_BITS, "words": WORDS_BITS})
"""Consecutive words of DRAM at any address. A read of no words is answered by zeros."""


def beat(geometry: CoreGeometry) -> data.ArrayLayout:
    """The words of a beat; those that were not asked for are zeros."""
    return data.ArrayLayout(signed(geometry.width), geometry.beat_words)


class Loader(Component):
    """Requests a beat each cycle and takes the answers in order, so that DRAM's latency counts once per descriptor."""

    def __init__(self, geometry: CoreGeometry) -> None:
        """A loader for the banks of `geometry`."""
        self._geometry = geometry
        self.module_name = f"loader_{geometry.beat_words}_{geometry.width}"
        super().__init__(
            {
                "commands": In(stream.Signature(DESCRIPTOR_BITS)),
                "finished": Out(1),
                "idle": Out(1),
                "requests": Out(stream.Signature(REQUEST)),
                "answers": In(stream.Signature(beat(geometry))),
                "writes": Out(1),
                "memory": Out(Memory),
                "address": Out(COUNT_BITS),
                "banks": Out(geometry.beat_words),
                "words": Out(beat(geometry)),
            }
        )

    def elaborate(self, platform: Library | None) -> Module:
        """One state machine; the requests run ahead of the answers."""
        m = Module()
        load = payload(Op.LOAD, self.commands.payload)
        op = payload(Op.BARRIER, self.commands.payload).op
        nest = place(m, "nest", platform, Nest, ADDRESS_BITS)
        now = Signal(load.shape())
        address, serial = Signal(COUNT_BITS), Signal(WORDS_BITS)
        asked, outstanding = Signal(), Signal(COUNT_BITS + 1)
        m.d.comb += [
            nest.level.eq(payload(Op.LEVEL, self.commands.payload)),
            nest.base.eq(load.base),
            nest.steps.eq(self.requests.valid & self.requests.ready),
            self.requests.payload.address.eq(nest.address),
            self.requests.payload.words.eq(Mux(nest.inside, Mux(nest.at_end[0], now.tail, now.words), 0)),
            self.memory.eq(now.memory),
            self.address.eq(address),
            self.banks.eq(now.banks),
        ]
        words = Array(self.answers.payload[i] for i in range(self._geometry.beat_words))
        one = Signal(signed(self._geometry.width))
        m.d.comb += one.eq(words[serial])
        for i in range(self._geometry.beat_words):
            m.d.comb += self.words[i].eq(Mux(now.column, one, self.answers.payload[i]))
        with m.FSM() as states:
            with m.State("IDLE"):
                m.d.comb += self.commands.ready.eq(1)
                with m.If(self.commands.valid):
                    m.d.comb += nest.configures.eq(op == Op.LEVEL)
                    with m.If(op == Op.LOAD):
                        m.d.comb += nest.starts.eq(1)
                        m.d.sync += [now.eq(load), address.eq(load.to), serial.eq(0), asked.eq(0), outstanding.eq(0)]
                        m.next = "LOAD"
            with m.State("LOAD"):
                asks, takes = Signal(), Signal()
                last_word = ~now.column | (serial == now.words - 1)
                m.d.comb += [
                    self.requests.valid.eq(~asked),
                    asks.eq(self.requests.valid & self.requests.ready),
                    self.answers.ready.eq(last_word),
                    self.writes.eq(self.answers.valid),
                    takes.eq(self.answers.valid & last_word),
                ]
                m.d.sync += outstanding.eq(outstanding + asks - takes)
                with m.If(asks & nest.at_end.all()):
                    m.d.sync += asked.eq(1)
                with m.If(self.answers.valid):
                    m.d.sync += [address.eq(address + 1), serial.eq(Mux(last_word, 0, serial + 1))]
                with m.If(takes & asked & (outstanding == 1)):
                    m.d.comb += self.finished.eq(1)
                    m.next = "IDLE"
        m.d.comb += self.idle.eq(states.ongoing("IDLE"))
        return m
