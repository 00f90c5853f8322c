"""A core: one array with its buffers, lanes and controller."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.buffers import Bank
from adagp.accelerator.rtl.controller import Controller
from adagp.accelerator.rtl.descriptor import LAYOUT, Memory
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.lane import Lane
from adagp.accelerator.rtl.library import Library, place
from adagp.accelerator.rtl.systolic_array import SystolicArray


def outer_ports(geometry: CoreGeometry) -> dict[str, Any]:
    """The ports of a core that lead out of the accelerator."""
    return {
        "descriptor": In(LAYOUT),
        "valid": In(1),
        "ready": Out(1),
        "busy": Out(1),
        "words": In(signed(geometry.width)).array(geometry.port_words),
        "words_valid": In(1),
        "words_ready": Out(1),
        "results": Out(signed(geometry.width)).array(geometry.columns),
        "results_valid": Out(1),
    }


class Core(Component):
    """Takes descriptors and rows of words, and gives rows of results.

    `words` enter while `words_valid` and `words_ready` are high: in a load a row of all banks, in a drain with old
    words a row of those. `results` leave while `results_valid` is high, and must be taken in that cycle.
    """

    def __init__(self, geometry: CoreGeometry) -> None:
        """A core of the given sizes."""
        self._geometry = size = geometry
        self.module_name = (
            f"core_{size.rows}x{size.columns}_{size.width}_{size.sum_width}_{size.input_depth}_{size.weight_depth}"
            f"_{size.output_depth}_{size.predictor_depth}{'_pools' if size.pools else ''}"
        )
        super().__init__({**outer_ports(size), "joins": Out(1), "other_joins": In(1)})

    def elaborate(self, platform: Library | None) -> Module:
        """Connect the parts, and delay each address until its row or column needs it."""
        m = Module()
        size = self._geometry
        control = place(m, "controller", platform, Controller, size)
        array = place(m, "array", platform, SystolicArray, size)
        m.d.comb += [
            control.descriptor.eq(self.descriptor),
            control.valid.eq(self.valid),
            control.other_joins.eq(self.other_joins),
            control.words_valid.eq(self.words_valid),
            self.ready.eq(control.ready),
            self.busy.eq(control.busy),
            self.joins.eq(control.joins),
            self.words_ready.eq(control.words_ready),
            array.load.eq(control.shifts_weights),
        ]
        self._inputs(m, control, array, platform)
        sums = self._outputs(m, control, array, platform)
        self._weights(m, control, array, sums, platform)
        return m

    def _inputs(self, m: Module, control: Any, array: Any, platform: Library | None) -> None:
        """The input buffer: row r reads r cycles after row 0."""
        size = self._geometry
        fills = control.fills & (control.current.memory == Memory.INPUTS)
        address = control.input_address
        for r in range(size.rows):
            bank = place(m, f"inputs_{r}", platform, Bank, size.width, size.input_depth)
            m.d.comb += [
                bank.read_address.eq(address),
                bank.write_enable.eq(fills),
                bank.write_address.eq(control.input_address),
                bank.write_data.eq(self.words[r]),
                array.inputs[r].eq(bank.read_data),
            ]
            address = _later(m, address, f"input_address_{r + 1}")

    def _outputs(self, m: Module, control: Any, array: Any, platform: Library | None) -> list[Any]:
        """The output buffer: column c reads the sums so far c cycles after column 0, and writes R + 1 after reading.

        Returns the sums of the row that is drained.
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
        sums = []
        for c in range(size.columns):
            bank = place(m, f"outputs_{c}", platform, Bank, size.sum_width, size.output_depth)
            address, _, _ = ask[c]
            first = ask[c + 1][2]  # the memory's answer comes a cycle after the address
            write_address, write_enable, _ = ask[c + size.rows + 1]
            m.d.comb += [
                bank.read_address.eq(Mux(control.drains, control.output_address, address)),
                bank.write_enable.eq(write_enable),
                bank.write_address.eq(write_address),
                bank.write_data.eq(array.sums_below[c]),
                array.sums_above[c].eq(Mux(first, 0, bank.read_data)),
            ]
            sums.append(bank.read_data)
        return sums

    def _weights(self, m: Module, control: Any, array: Any, sums: list[Any], platform: Library | None) -> None:
        """The weight memories and the lanes, which may write updated weights back."""
        size, now = self._geometry, control.current
        takes, takes_run = (
            _later(m, what, name, reset_less=False)
            for what, name in ((control.drains, "lane_takes"), (control.drains_run, "lane_takes_run"))
        )
        gives = _later(m, takes, "lane_gives", reset_less=False)
        gives_run = _later(m, takes_run, "lane_gives_run", reset_less=False)
        back_address = _later(m, _later(m, control.weight_address, "back_address_1"), "back_address_2")
        writes_back = gives & now.in_place
        m.d.comb += self.results_valid.eq(gives | gives_run)
        memories = {Memory.WEIGHTS: size.weight_depth}
        if size.predictor_depth:
            memories[Memory.PREDICTOR] = size.predictor_depth
        for c in range(size.columns):
            lane = place(m, f"lane_{c}", platform, Lane, size)
            held: Any = None
            for memory, depth in memories.items():
                bank = place(m, f"{memory.name.lower()}_{c}", platform, Bank, size.width, depth)
                chosen = now.memory == memory
                m.d.comb += [
                    bank.read_address.eq(control.weight_address),
                    bank.write_enable.eq((control.fills | writes_back) & chosen),
                    bank.write_address.eq(Mux(writes_back, back_address, control.weight_address)),
                    bank.write_data.eq(Mux(writes_back, lane.result, self.words[c])),
                ]
                held = bank.read_data if held is None else Mux(chosen, bank.read_data, held)
            entered = _later(m, self.words[c], f"entered_{c}")
            m.d.comb += [
                array.weights[c].eq(held),
                lane.adds_to_run.eq(takes & (now.pool_run != 0)),
                lane.takes_run.eq(takes_run),
                lane.mode.eq(now.mode),
                lane.shift.eq(Mux(takes_run, now.pool_shift, now.shift)),
                lane.sum.eq(sums[c]),
                lane.old.eq(Mux(now.in_place, held, entered)),
                self.results[c].eq(lane.result),
            ]


def _later(m: Module, value: Any, name: str, reset_less: bool = True) -> Any:
    """The value of the previous cycle."""
    register = Signal(value.shape(), name=name, reset_less=reset_less)
    m.d.sync += register.eq(value)
    return register
