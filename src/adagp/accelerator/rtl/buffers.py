"""Memories: banks that each read one word and write one word a cycle."""

from typing import Any

from amaranth.hdl import Module, signed
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out


class Bank(Component):
    """One read and one write port. A word read arrives a cycle later; if it is being written, the old word arrives."""

    def __init__(self, width: int, depth: int) -> None:
        """A bank of `depth` signed words of `width` bits."""
        self._width, self._depth = width, depth
        self.module_name = f"bank_{depth}x{width}"
        address_bits = (depth - 1).bit_length()
        super().__init__(
            {
                "read_enable": In(1, init=1),
                "read_address": In(address_bits),
                "read_data": Out(signed(width)),
                "write_enable": In(1),
                "write_address": In(address_bits),
                "write_data": In(signed(width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A plain memory, which synthesis maps to block RAM."""
        m = Module()
        m.submodules.memory = memory = Memory(shape=signed(self._width), depth=self._depth, init=[])
        read, write = memory.read_port(), memory.write_port()
        m.d.comb += [
            read.en.eq(self.read_enable),
            read.addr.eq(self.read_address),
            self.read_data.eq(read.data),
            write.en.eq(self.write_enable),
            write.addr.eq(self.write_address),
            write.data.eq(self.write_data),
        ]
        return m
