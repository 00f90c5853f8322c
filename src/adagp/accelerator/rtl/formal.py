"""Properties of the units that hold for every input, as far as yosys' SAT solver looks.

Each property is a component around a unit. Its inputs are free: the solver may choose them in every cycle. Its output
`ok` must never be low. `prove` starts at reset and tries all inputs for a number of cycles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out

from adagp.accelerator.rtl.controller import Controller
from adagp.accelerator.rtl.descriptor import LAYOUTS, Op, Unit
from adagp.accelerator.rtl.dispatcher import Dispatcher
from adagp.accelerator.rtl.drainer import Drainer
from adagp.accelerator.rtl.geometry import COUNT_BITS, CoreGeometry
from adagp.accelerator.rtl.loader import Loader
from adagp.accelerator.rtl.tools import ToolError, run_yosys

SMALL = CoreGeometry(2, 2, 4, 8, 16, 16, 16, 16)
"""A core small enough for the solver: 2x2 PEs, operands of 4 bits."""
_SHORT = 2
"""Descriptors in a queue: so few that the solver fills it, which makes the source wait."""


class QueueOrder(Component):
    """A queue gives every word that it took, in order, and none else; it is never full and empty at once."""

    def __init__(self) -> None:
        """A queue of three words of two bits: one word is marked, and must come out in its turn."""
        self.module_name = "queue_order"
        super().__init__(
            {"writes": In(1), "reads": In(1), "word": In(2), "marks": In(1), "ok": Out(1)},
        )

    def elaborate(self, platform: Any) -> Module:
        """Count the words before the marked one."""
        m = Module()
        m.submodules.queue = queue = SyncFIFO(width=2, depth=3)
        m.d.comb += [queue.w_en.eq(self.writes), queue.w_data.eq(self.word), queue.r_en.eq(self.reads)]
        takes, gives = queue.w_en & queue.w_rdy, queue.r_en & queue.r_rdy
        m.d.comb += self.ok.eq(_in_order(m, takes, gives, self.word, queue.r_data, self.marks, queue.r_rdy))
        return m


class DispatcherOrder(Component):
    """The dispatcher gives each unit all its descriptors in order, whatever the units and the source do."""

    def __init__(self) -> None:
        """One descriptor of the array is marked, and must come out in its turn."""
        self.module_name = "dispatcher_order"
        super().__init__({"valid": In(1), "unit": In(2), "word": In(2), "marks": In(1), "ready": In(3), "ok": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        """Descriptors without tokens; two bits of payload are free."""
        m = Module()
        m.submodules.dispatcher = unit = Dispatcher(_SHORT)
        layout = LAYOUTS[Op.LEVEL]
        m.d.comb += [
            unit.descriptors.valid.eq(self.valid & (self.unit < len(Unit))),
            _fields(unit.descriptors.payload, layout, op=Op.LEVEL, unit=self.unit, count=self.word),
            *(unit.commands[each].ready.eq(self.ready[each]) for each in Unit),
            *(unit.idle[each].eq(1) for each in Unit),
        ]
        command = unit.commands[Unit.ARRAY]
        takes = unit.descriptors.valid & unit.descriptors.ready & (self.unit == Unit.ARRAY)
        given = Signal(layout)
        m.d.comb += given.eq(command.payload[: layout.size])
        gives = command.valid & command.ready
        m.d.comb += self.ok.eq(_in_order(m, takes, gives, self.word, given.count[:2], self.marks, command.valid))
        return m


class TokensNeverBlock(Component):
    """Units that wait for tokens never wait for ever, if each wait comes after the signal that it takes."""

    def __init__(self) -> None:
        """Units that finish after at most two cycles, and any program that keeps this rule."""
        self.module_name = "tokens_never_block"
        super().__init__(
            {"valid": In(1), "unit": In(2), "waits": In(3), "signals": In(3), "finishes": In(3), "ok": Out(1)}
        )

    def elaborate(self, platform: Any) -> Module:
        """Count the cycles in which nothing happens although something is to be done."""
        m = Module()
        m.submodules.dispatcher = dispatcher = Dispatcher(_SHORT)
        descriptors = dispatcher.descriptors
        takes = descriptors.valid & descriptors.ready
        waits, signals = Signal(3), Signal(3)
        m.d.comb += [
            descriptors.valid.eq(self.valid & (self.unit < len(Unit))),
            _fields(descriptors.payload, LAYOUTS[Op.LOAD], op=Op.LOAD, unit=self.unit, waits=waits, signals=signals),
        ]
        for giver in Unit:
            for taker in Unit:
                if giver is taker:
                    continue
                owed = Signal(3, name=f"owed_{giver.name}_{taker.name}")  # signals in the program minus waits
                mine, theirs = self.unit == taker, self.unit == giver
                with m.If(mine & (owed != 0)):
                    m.d.comb += waits[giver].eq(self.waits[giver])
                with m.If(theirs & (owed != 7)):
                    m.d.comb += signals[taker].eq(self.signals[taker])
                with m.If(takes):
                    m.d.sync += owed.eq(owed + (theirs & signals[taker]) - (mine & waits[giver]))
        moves: Any = takes
        pending: Any = Value.cast(0)
        for unit in Unit:
            busy, late = Signal(name=f"busy_{unit.name}"), Signal(name=f"late_{unit.name}")
            command = dispatcher.commands[unit]
            finishes = busy & (self.finishes[unit] | late)
            starts = command.valid & command.ready
            m.d.comb += [
                command.ready.eq(~busy),
                dispatcher.idle[unit].eq(~busy),
                dispatcher.finished[unit].eq(finishes),
            ]
            m.d.sync += [busy.eq(Mux(busy, ~finishes, starts)), late.eq(busy & ~finishes)]
            queued = Signal(4, name=f"queued_{unit.name}")
            m.d.sync += queued.eq(queued + (takes & (self.unit == unit)) - starts)
            moves, pending = moves | starts | finishes, pending | (queued != 0) | busy
        still = Signal(3)
        m.d.sync += still.eq(Mux(pending & ~moves, still + 1, 0))
        m.d.comb += self.ok.eq(still < 3)
        return m


class LoaderLosesNothing(Component):
    """The loader writes every word that it asked for, once and in order, whatever DRAM makes it wait for."""

    def __init__(self) -> None:
        """A load of one to three beats, by beats or by words."""
        self.module_name = "loader_loses_nothing"
        super().__init__({"beats": In(2), "column": In(1), "accepts": In(1), "answers": In(1), "ok": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        """DRAM answers with the number of the word, when it likes."""
        m = Module()
        m.submodules.loader = loader = Loader(SMALL)
        config, begun = _script(m, loader.commands, self.beats, self.column, Op.LOAD)
        beats, column = config
        asked, answered, written = Signal(3), Signal(3), Signal(4)
        owed = asked != answered
        m.d.comb += [
            loader.requests.ready.eq(self.accepts),
            loader.answers.valid.eq(self.answers & owed),
            *(loader.answers.payload[i].eq(Cat(Value.cast(i)[0], answered)) for i in range(2)),
        ]
        with m.If(loader.requests.valid & loader.requests.ready):
            m.d.sync += asked.eq(asked + 1)
        with m.If(loader.answers.valid & loader.answers.ready):
            m.d.sync += answered.eq(answered + 1)
        with m.If(loader.writes):
            m.d.sync += written.eq(written + 1)
        right_words = Mux(
            column,
            loader.words[0].as_unsigned() == written,
            (loader.words[0].as_unsigned() == written << 1) & (loader.words[1].as_unsigned() == (written << 1 | 1)),
        )
        all_written = written + 1 == Mux(column, beats << 1, beats)
        m.d.comb += self.ok.eq(
            (~loader.writes | (right_words & (loader.address == written)))
            & (~loader.finished | (loader.writes & all_written & (asked == beats)))
            & (asked <= beats)
            & _patient(m, loader.requests, begun)
        )
        return m


class DrainerLosesNothing(Component):
    """The drainer writes every row of sums, once and in order, whatever DRAM makes it wait for."""

    def __init__(self) -> None:
        """A drain of one to three rows."""
        self.module_name = "drainer_loses_nothing"
        super().__init__({"rows": In(2), "accepts": In(1), "ok": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        """Memory and lane are registers that advance with the drainer; a sum is its own address."""
        m = Module()
        m.submodules.drainer = drainer = Drainer(SMALL)
        (rows, _), begun = _script(m, drainer.commands, self.rows, Value.cast(0), Op.DRAIN)
        read, result, written = Signal(COUNT_BITS), Signal(COUNT_BITS), Signal(3)
        with m.If(drainer.advances):
            m.d.sync += [read.eq(drainer.output_address), result.eq(read)]
        m.d.comb += drainer.writes.ready.eq(self.accepts)
        writes = drainer.writes.valid & drainer.writes.ready
        with m.If(writes):
            m.d.sync += written.eq(written + 1)
        m.d.comb += self.ok.eq(
            (~writes | ((drainer.writes.payload.address == written) & (result == written) & (written < rows)))
            & (~drainer.finished | (writes & (written + 1 == rows)))
            & _patient(m, drainer.writes, begun)
        )
        return m


class ControllerEnds(Component):
    """A product ends after exactly the cycles of its formula, so the controller never stays busy."""

    def __init__(self) -> None:
        """One or two rows, folds and folds of columns, on 2x2 PEs."""
        self.module_name = "controller_ends"
        super().__init__({"rows": In(1), "k": In(1), "n": In(1), "ok": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        """Count the cycles since the product was taken."""
        m = Module()
        m.submodules.controller = control = Controller(SMALL)
        begun, rows, k, n = Signal(), Signal(2), Signal(2), Signal(2)
        new = [1 + self.rows, 1 + self.k, 1 + self.n]
        with m.If(~begun):
            m.d.sync += [begun.eq(1), rows.eq(new[0]), k.eq(new[1]), n.eq(new[2])]
        m.d.comb += [
            control.commands.valid.eq(~begun),
            _fields(
                control.commands.payload, LAYOUTS[Op.PRODUCT], op=Op.PRODUCT, unit=Unit.ARRAY,
                count=new[0], k_folds=new[1], n_folds=new[2],
            ),
        ]  # fmt: skip
        cycles, ended = Signal(6), Signal()
        folds = Mux(k == 2, n << 1, n)
        cross = SMALL.rows + SMALL.columns - 2
        last = Signal(6)
        m.d.comb += last.eq(Mux(folds == 4, 4, folds) * (SMALL.rows + rows + cross) + 1)
        with m.If(begun & ~ended):
            m.d.sync += [cycles.eq(cycles + 1), ended.eq(control.finished)]
        m.d.comb += self.ok.eq(~begun | ended | (control.finished == (cycles == last)))
        return m


@dataclass(frozen=True)
class Property:
    """Something to prove.

    Attributes:
        build: The component.
        cycles: Cycles after reset in which all inputs are tried.
    """

    build: Callable[[], Component]
    cycles: int


PROPERTIES = {
    "queue: order, nothing lost": Property(QueueOrder, 8),
    "dispatcher: order, nothing lost": Property(DispatcherOrder, 12),
    "dispatcher: tokens never block": Property(TokensNeverBlock, 9),
    "loader: nothing lost under back-pressure": Property(LoaderLosesNothing, 12),
    "drainer: nothing lost under back-pressure": Property(DrainerLosesNothing, 12),
    "controller: a product ends": Property(ControllerEnds, 29),
}


def prove(component: Component, cycles: int) -> bool:
    """Whether `ok` is high in every cycle after reset, for all inputs.

    Raises:
        ToolError: If yosys is missing or fails.
    """
    text = rtlil.convert(component, name=component.module_name, emit_src=False)
    script = f"""
hierarchy -top {component.module_name}; proc; flatten; memory; opt -full; opt_clean
write_file verdict <<END
fails
END
sat -tempinduct-baseonly -maxsteps {cycles} -set-init-zero -set rst 0 -prove ok 1 -verify
write_file verdict <<END
holds
END
"""
    try:
        return run_yosys(text, script, "verdict").strip() == "holds"
    except ToolError as error:
        if "proof did fail" in str(error):
            return False
        raise


def _in_order(m: Module, takes: Any, gives: Any, word: Any, given: Any, marks: Any, offers: Any) -> Any:
    """Whether a queue gives a marked word in its turn, and has something to offer until then."""
    inside, marked, done, before, expected = Signal(4), Signal(), Signal(), Signal(4), Signal(2)
    m.d.sync += inside.eq(inside + takes - gives)
    with m.If(takes & marks & ~marked):
        m.d.sync += [marked.eq(1), expected.eq(word), before.eq(inside - gives)]
    turn = marked & ~done & gives & (before == 0)
    with m.If(marked & gives):
        m.d.sync += [before.eq(before - 1), done.eq(done | turn)]
    return ~(turn & (given != expected)) & ~(marked & ~done & ~offers) & ~(gives & (inside == 0))


def _script(m: Module, commands: Any, count: Any, flag: Any, op: Op) -> tuple[tuple[Any, Any], Any]:
    """Send a loop of `count` iterations and one descriptor; returns both inputs as they were at the start."""
    step, kept, flagged = Signal(2), Signal(2), Signal()
    some = Signal(2)
    m.d.comb += some.eq(Mux(count == 0, 1, count))
    with m.If(step == 0):
        m.d.sync += [kept.eq(some), flagged.eq(flag)]
    with m.If(commands.valid & commands.ready):
        m.d.sync += step.eq(step + 1)
    own: dict[str, Any] = {"words": 2, "tail": 2}
    own |= {"column": flagged, "banks": 3} if op is Op.LOAD else {"count": kept}
    m.d.comb += commands.valid.eq(step < 2)
    with m.If(step == 0):
        m.d.comb += _fields(commands.payload, LAYOUTS[Op.LEVEL], op=Op.LEVEL, count=some, high=some, stride=1)
    with m.Else():
        m.d.comb += _fields(commands.payload, LAYOUTS[op], op=op, **own)
    return (kept, flagged), step == 2


def _patient(m: Module, channel: Any, begun: Any) -> Any:
    """Whether an offer stays as it is until it is taken, as streams must."""
    waits, payload = Signal(), Signal(len(Value.cast(channel.payload)))
    m.d.sync += [waits.eq(begun & channel.valid & ~channel.ready), payload.eq(channel.payload)]
    return ~waits | (channel.valid & (Value.cast(channel.payload) == payload))


def _fields(signal: Any, layout: Any, **values: Any) -> Any:
    """Assign fields of a descriptor; the others are zeros."""
    pieces = []
    for name, field in layout:
        value = Value.cast(values.get(name, 0))
        pieces.append(Cat(value, Value.cast(0).replicate(field.width))[: field.width])
    return signal.eq(Cat(*pieces))
