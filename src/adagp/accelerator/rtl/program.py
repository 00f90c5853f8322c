"""A program: descriptors in order, with the tokens that keep units from overtaking each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from adagp.accelerator.rtl.descriptor import LEVELS, Barrier, Descriptor, Drain, Level, Load, Offset, Product, Unit


@dataclass(frozen=True)
class Loop:
    """One loop of an address generator.

    Attributes:
        count: Iterations.
        stride: What an iteration adds to the address.
        low: First iteration that reads DRAM.
        high: First iteration after those that do; all of them by default.
        pool_stride: What an iteration adds to the pooling address.
    """

    count: int
    stride: int = 0
    low: int = 0
    high: int | None = None
    pool_stride: int = 0

    @property
    def inside(self) -> int:
        """Iterations that read DRAM."""
        high = self.count if self.high is None else min(self.high, self.count)
        return max(0, high - self.low)


ONCE = Loop(1)


@dataclass
class Program:
    """Descriptors in the order they are given to a core.

    Work is named by its index. `after` lists the work that must be done first. Where that is done by another unit, its
    descriptor gives a token and the new one takes it. Units work in order, so one token stands for all earlier work.
    """

    descriptors: list[Descriptor] = field(default_factory=list)
    loops: dict[int, tuple[Loop, ...]] = field(default_factory=dict)
    _set: dict[Unit, tuple[Loop, ...]] = field(default_factory=lambda: dict.fromkeys(Unit, (ONCE,) * LEVELS))
    _offsets: dict[int, int] = field(default_factory=dict)
    _seen: dict[tuple[Unit, Unit], int] = field(default_factory=dict)

    def work(self, descriptor: Load | Product | Drain, loops: Sequence[Loop], after: Sequence[int] = ()) -> int:
        """Add a load, product or drain with its loops, the innermost first; returns its index."""
        unit = descriptor.unit
        whole = (*loops, *(ONCE,) * (LEVELS - len(loops)))
        if self._set[unit] != whole:
            for level, (before, loop) in enumerate(zip(self._set[unit], whole, strict=True)):
                if before != loop:
                    self.descriptors.append(_level(unit, level, loop))
            self._set[unit] = whole
        waits = self._waits(unit, after)
        index = len(self.descriptors)
        self.descriptors.append(replace(descriptor, waits=waits) if waits else descriptor)
        self.loops[index] = whole
        return index

    def _waits(self, unit: Unit, after: Sequence[int]) -> int:
        """The units whose tokens `unit` takes before it goes on, one bit each; they are made to give them."""
        waits = 0
        for index in after:
            other = self.descriptors[index].unit
            if other is not unit and index > self._seen.get((other, unit), -1):
                latest = max(i for i in after if self.descriptors[i].unit is other)
                self._seen[other, unit] = latest
                self._signal(latest, unit)
                waits |= 1 << other
        return waits

    def offset(self, row: int, offset: int) -> None:
        """Let a row add an offset to its input addresses from now on."""
        if self._offsets.get(row, 0) != offset:
            self._offsets[row] = offset
            self.descriptors.append(Offset(row, offset))

    def barrier(self, join: bool = False) -> None:
        """Let everything before be done before anything after it starts."""
        self.descriptors.append(Barrier(join))

    def _signal(self, index: int, unit: Unit) -> None:
        giver = self.descriptors[index]
        assert isinstance(giver, Load | Product | Drain)
        self.descriptors[index] = replace(giver, signals=giver.signals | 1 << unit)


@cache
def _level(unit: Unit, level: int, loop: Loop) -> Level:
    """The descriptor that sets a loop; a program sets the same ones again and again."""
    high = loop.count if loop.high is None else max(0, loop.high)
    return Level(unit, level, loop.count, loop.stride, loop.low, high, pool_stride=loop.pool_stride)
