"""A core: one array with its memories, and the three units that work at the same time."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, Signature, connect, flipped

from adagp.accelerator.rtl.buffers import Bank
from adagp.accelerator.rtl.controller import Controller
from adagp.accelerator.rtl.descriptor import DESCRIPTOR_BITS, Memory, Unit
from adagp.accelerator.rtl.dispatcher import Dispatcher
from adagp.accelerator.rtl.drainer import Drainer
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.lane import Lane
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.rtl.loader import REQUEST, Loader, beat
from adagp.accelerator.rtl.systolic_array import SystolicArray


def core_ports(geometry: CoreGeometry) -> Signature:
    """The ports of a core that lead out of the accelerator: descriptors, and DRAM's three channels."""
    write = data.StructLayout({"request": REQUEST, "data": beat(geometry)})
    return Signature(
        {
            "descriptors": In(stream.Signature(DESCRIPTOR_BITS)),
            "requests": Out(stream.Signature(REQUEST)),
            "answers": In(stream.Signature(beat(geometry))),
            "writes": Out(stream.Signature(write)),
        }
    )


class Core(Component):
    """Takes descriptors, reads DRAM and writes DRAM; every channel may make the other side wait."""

    def __init__(self, geometry: CoreGeometry) -> None:
        """A core of the given sizes."""
        self._geometry = size = geometry
        self.module_name = (
            f"core_{size.rows}x{size.columns}_{size.width}_{size.sum_width}_{size.input_depth}_{size.weight_depth}"
            f"_{size.output_depth}_{size.old_depth}_{size.predictor_depth}_{size.pool_depth}"
        )
        super().__init__({"outer": Out(core_ports(size)), "joins": Out(1), "other_joins": In(1)})

    def elaborate(self, platform: Library | None) -> Module:
        """Connect the parts, and delay each address until its row or column needs it."""
        m = Module()
        size = self._geometry
        dispatcher = place(m, "dispatcher", platform, Dispatcher)
        loader = place(m, "loader", platform, Loader, size)
        control = place(m, "controller", platform, Controller, size)
        drainer = place(m, "drainer", platform, Drainer, size)
        array = place(m, "array", platform, SystolicArray, size)
        outer = flipped(self.outer)
        connect(m, outer.descriptors, dispatcher.descriptors)
        connect(m, loader.requests, outer.requests)
        connect(m, outer.answers, loader.answers)
        m.d.comb += [
            self.joins.eq(dispatcher.joins),
            dispatcher.other_joins.eq(self.other_joins),
            array.load.eq(control.shifts_weights),
            self.outer.writes.valid.eq(drainer.writes.valid),
            drainer.writes.ready.eq(self.outer.writes.ready),
            self.outer.writes.payload.request.eq(drainer.writes.payload),
        ]
        for unit, part in ((Unit.LOADER, loader), (Unit.ARRAY, control), (Unit.DRAINER, drainer)):
            connect(m, dispatcher.commands[unit], part.commands)
            m.d.comb += [dispatcher.finished[unit].eq(part.finished), dispatcher.idle[unit].eq(part.idle)]
        lanes = [place(m, f"lane_{c}", platform, Lane, size) for c in range(size.columns)]
        held = self._inputs(m, loader, control, drainer, array, lanes, platform)
        self._weights(m, loader, control, array, platform)
        self._outputs(m, control, drainer, array, lanes, platform)
        self._old(m, loader, drainer, lanes, held, platform)
        if size.pool_depth:
            self._pool(m, drainer, lanes, platform)
        return m

    def _inputs(
        self,
        m: Module,
        loader: Any,
        control: Any,
        drainer: Any,
        array: Any,
        lanes: list[Any],
        platform: Library | None,
    ) -> list[Any]:
        """The input buffer, and the predictor's memory beside it: row r reads r cycles after row 0.

        Returns the words that the predictor's memory gives to the drainer.
        """
        size, held = self._geometry, []
        address = control.input_address
        for r in range(size.rows):
            read_address = Signal.like(address, name=f"read_address_{r}")
            bank = place(m, f"inputs_{r}", platform, Bank, size.width, size.input_depth)
            _fill(m, bank, loader, Memory.INPUTS, r)
            m.d.comb += [read_address.eq(address + control.offsets[r]), bank.read_address.eq(read_address)]
            given = bank.read_data
            if size.predictor_depth and r < size.predictor_banks:
                second = place(m, f"predictor_{r}", platform, Bank, size.width, size.predictor_depth)
                back = drainer.back_writes
                m.d.comb += [
                    second.read_enable.eq(~drainer.in_place | drainer.advances),
                    second.read_address.eq(Mux(drainer.in_place, drainer.old_address, read_address)),
                    second.write_enable.eq(
                        back | (loader.writes & (loader.memory == Memory.PREDICTOR) & loader.banks[r])
                    ),
                    second.write_address.eq(Mux(back, drainer.back_address, loader.address)),
                    second.write_data.eq(Mux(back, lanes[r].result, loader.words[r])),
                ]
                given = Mux(control.memory == Memory.PREDICTOR, second.read_data, given)
                held.append(second.read_data)
            m.d.comb += array.inputs[r].eq(given)
            address = _later(m, address, f"input_address_{r + 1}")
        return held

    def _weights(self, m: Module, loader: Any, control: Any, array: Any, platform: Library | None) -> None:
        """The weight buffer: all columns read at once, while the weights are shifted in."""
        size = self._geometry
        for c in range(size.columns):
            bank = place(m, f"weights_{c}", platform, Bank, size.width, size.weight_depth)
            _fill(m, bank, loader, Memory.WEIGHTS, c)
            m.d.comb += [bank.read_address.eq(control.weight_address), array.weights[c].eq(bank.read_data)]

    def _outputs(
        self, m: Module, control: Any, drainer: Any, array: Any, lanes: list[Any], platform: Library | None
    ) -> None:
        """The output buffer: column c reads the sums so far c cycles after column 0, and writes R + 1 after reading.

        One half belongs to the array and the other to the drainer; tokens keep them apart.
        """
        size = self._geometry
        ask: list[tuple[Any, Any, Any]] = [(control.output_address, control.streams, control.first)]
        for step in range(1, size.rows + size.columns + 1):
            address, valid, first = ask[-1]
            ask.append(
                (
                    _later(m, address, f"output_address_{step}"),
                    _later(m, valid, f"streams_{step}", reset_less=False),
                    _later(m, first, f"first_{step}"),
                )
            )
        for c in range(size.columns):
            address, _, _ = ask[c]
            first = ask[c + 1][2]  # the memory's answer comes a cycle after the address
            write_address, write_enable, _ = ask[c + size.rows + 1]
            halves = []
            for half in (0, 1):
                bank = place(m, f"outputs_{half}_{c}", platform, Bank, size.sum_width, size.output_depth)
                drains = drainer.reads_sums & (drainer.half == half)
                m.d.comb += [
                    bank.read_enable.eq(~drains | drainer.advances),
                    bank.read_address.eq(Mux(drains, drainer.output_address, address)),
                    bank.write_enable.eq(write_enable & (control.half == half)),
                    bank.write_address.eq(write_address),
                    bank.write_data.eq(array.sums_below[c]),
                ]
                halves.append(bank.read_data)
            m.d.comb += [
                array.sums_above[c].eq(Mux(first, 0, Mux(control.half, halves[1], halves[0]))),
                lanes[c].sum.eq(Mux(drainer.half, halves[1], halves[0])),
            ]

    def _old(
        self, m: Module, loader: Any, drainer: Any, lanes: list[Any], held: list[Any], platform: Library | None
    ) -> None:
        """The lanes, and the buffer of the old words that they update or mask."""
        size = self._geometry
        for c, lane in enumerate(lanes):
            bank = place(m, f"old_{c}", platform, Bank, size.width, size.old_depth)
            _fill(m, bank, loader, Memory.OLD, c)
            m.d.comb += [
                bank.read_enable.eq(drainer.advances),
                bank.read_address.eq(drainer.old_address),
                lane.advances.eq(drainer.advances),
                lane.mode.eq(drainer.mode),
                lane.shift.eq(drainer.shift),
                lane.old.eq(Mux(drainer.in_place, held[c], bank.read_data) if c < len(held) else bank.read_data),
                self.outer.writes.payload.data[c].eq(lane.result),
            ]

    def _pool(self, m: Module, drainer: Any, lanes: list[Any], platform: Library | None) -> None:
        """The pooling memory."""
        size = self._geometry
        for c, lane in enumerate(lanes):
            bank = place(m, f"pool_{c}", platform, Bank, size.sum_width, size.pool_depth)
            m.d.comb += [
                bank.read_enable.eq(drainer.advances),
                bank.read_address.eq(drainer.pool_address),
                bank.write_enable.eq(drainer.pool_writes),
                bank.write_address.eq(drainer.pool_write_address),
                bank.write_data.eq(Mux(drainer.pool_clears, 0, lane.total)),
                lane.pooled.eq(bank.read_data),
                lane.again.eq(drainer.pool_again),
                lane.from_pool.eq(drainer.from_pool),
            ]


def _fill(m: Module, bank: Any, loader: Any, memory: Memory, index: int) -> None:
    """Let the loader write a bank."""
    m.d.comb += [
        bank.write_enable.eq(loader.writes & (loader.memory == memory) & loader.banks[index]),
        bank.write_address.eq(loader.address),
        bank.write_data.eq(loader.words[index]),
    ]


def _later(m: Module, value: Any, name: str, reset_less: bool = True) -> Any:
    """The value of the previous cycle."""
    register = Signal(value.shape(), name=name, reset_less=reset_less)
    m.d.sync += register.eq(value)
    return register
