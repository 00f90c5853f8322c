"""Coverage of descriptors: which kinds of them, by operation, field and wait, compiled programs contain.

Nothing is clocked to count them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import permutations

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.descriptor import (
    Barrier,
    Descriptor,
    Drain,
    Level,
    Load,
    Memory,
    Mode,
    Offset,
    Op,
    Product,
    Unit,
)
from adagp.accelerator.rtl.measure import SAMPLES, small_batch, small_cores
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.schedules import Phase

_FLAGS = {
    Op.BARRIER: ("join",),
    Op.PRODUCT: ("accumulate",),
    Op.LOAD: ("column",),
    Op.DRAIN: ("in_place", "pools", "from_pool", "clears"),
}


def bins() -> list[str]:
    """Everything that is counted."""
    return [
        *(f"op {op.name}" for op in Op),
        *(f"level {level} of {unit.name}" for unit in Unit for level in range(6)),
        "level that reads outside of an image",
        "level with a negative stride",
        *(f"{op.name} {flag}={value}" for op, flags in _FLAGS.items() for flag in flags for value in (0, 1)),
        *(f"LOAD to {memory.name}" for memory in Memory),
        "LOAD with a tail",
        *(f"PRODUCT from {memory.name}" for memory in (Memory.INPUTS, Memory.PREDICTOR)),
        *(f"{op} of half {half}" for op in ("PRODUCT", "DRAIN") for half in (0, 1)),
        "PRODUCT of several folds",
        "PRODUCT of several folds of columns",
        *(f"DRAIN {mode.name}" for mode in Mode),
        "DRAIN with a tail",
        "DRAIN without a shift",
        "DRAIN with a shift",
        *(f"{giver.name} signals {taker.name}" for giver, taker in permutations(Unit, 2)),
        *(f"{taker.name} waits for {giver.name}" for giver, taker in permutations(Unit, 2)),
    ]


def counted(descriptors: Iterable[Descriptor]) -> dict[str, int]:
    """How often each of `bins` occurs."""
    found: Counter[str] = Counter(hit for each in descriptors for hit in _hits(each))
    unknown = set(found) - set(bins())
    assert not unknown, unknown
    return {name: found[name] for name in bins()}


def batch_descriptors() -> Iterator[Descriptor]:
    """The descriptors of a BP and a GP batch of the small network on every design, as `hardware report` clocks them."""
    memory = MemoryMap(small_batch()[0], SAMPLES)
    for design in Design:
        for phase in (Phase.BP, Phase.GP):
            if (design, phase) != (Design.BASELINE, Phase.GP):
                for program in BatchPrograms(design, small_cores(design), memory).batch(phase).values():
                    yield from program.descriptors


def _hits(each: Descriptor) -> Iterator[str]:
    yield f"op {each.op.name}"
    for flag in _FLAGS.get(each.op, ()):
        yield f"{each.op.name} {flag}={int(getattr(each, flag))}"
    for bit in Unit:
        if not isinstance(each, Barrier | Level | Offset):
            if each.waits >> bit & 1:
                yield f"{each.unit.name} waits for {bit.name}"
            if each.signals >> bit & 1:
                yield f"{each.unit.name} signals {bit.name}"
    match each:
        case Level():
            yield f"level {each.level} of {each.unit.name}"
            if each.unit is Unit.LOADER and (each.low > 0 or each.high < each.count):
                yield "level that reads outside of an image"
            if each.stride < 0:
                yield "level with a negative stride"
        case Load():
            yield f"LOAD to {each.memory.name}"
            if each.tail < each.words:
                yield "LOAD with a tail"
        case Product():
            yield f"PRODUCT from {each.memory.name}"
            yield f"PRODUCT of half {each.half}"
            if each.k_folds > 1:
                yield "PRODUCT of several folds"
            if each.n_folds > 1:
                yield "PRODUCT of several folds of columns"
        case Drain():
            yield f"DRAIN {each.mode.name}"
            yield f"DRAIN of half {each.half}"
            yield "DRAIN with a shift" if each.shift else "DRAIN without a shift"
            if each.tail < each.words:
                yield "DRAIN with a tail"
