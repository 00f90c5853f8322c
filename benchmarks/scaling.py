"""A small model of a data-parallel batch: seconds against ranks and network speed.

Three things, each measured on its own, are added, nothing overlaps:

- the work of a rank's share of the batch, as one rank needs for that many images alone. What every rank repeats
  whatever its share (optimizer, predictor, the calls themselves) is in it, and does not shrink with it. Ranks without
  a core of their own take turns.
- the steps of its messages. A ring of n ranks has 2 (n - 1) of them, a broadcast goes down a tree.
- the bytes. A ring carries each 2 (n - 1) / n times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2


@dataclass(frozen=True)
class Transport:
    """What a message costs, whatever is computed."""

    step_seconds: float
    bytes_per_second: float

    @classmethod
    def measured(cls, ranks: int, small_seconds: float, large_seconds: float, large_bytes: int) -> "Transport":
        """From an all-reduce of next to nothing and one of many bytes."""
        if large_seconds <= small_seconds:
            raise ValueError(
                f"{ranks} ranks: {large_bytes} bytes took no longer than one number ({large_seconds:.2g} s), so the "
                "machine is too busy to measure: try again"
            )
        carried = ring_share(ranks) * large_bytes
        return cls(small_seconds / ring_steps(ranks), carried / (large_seconds - small_seconds))

    def behind(self, wire_bytes_per_second: float) -> "Transport":
        """The same with a wire in between: software moves every byte, then the wire does."""
        return Transport(self.step_seconds, 1 / (1 / self.bytes_per_second + 1 / wire_bytes_per_second))


@dataclass(frozen=True)
class Traffic:
    """What a batch sends."""

    reductions: float
    broadcasts: float
    sent_bytes: float


def ring_steps(ranks: int) -> int:
    """Messages that follow each other in an all-reduce: once around to add up, once around to tell."""
    return 2 * (ranks - 1)


def ring_share(ranks: int) -> float:
    """How many times a rank sends each byte of an all-reduce."""
    return 2 * (ranks - 1) / ranks


def work_seconds(measured: Mapping[int, float], images: float) -> float:
    """What one rank needs for so many images: straight lines between the counts that were measured."""
    for (fewer, low), (more, high) in pairwise(sorted(measured.items())):
        if fewer <= images <= more:
            return low + (high - low) * (images - fewer) / (more - fewer)
    raise ValueError(f"{images} images a rank: measured were {min(measured)} to {max(measured)}")


def message_seconds(ranks: int, traffic: Traffic, transport: Transport) -> float:
    """What the messages of one batch take."""
    steps = traffic.reductions * ring_steps(ranks) + traffic.broadcasts * ceil(log2(ranks))
    return steps * transport.step_seconds + ring_share(ranks) * traffic.sent_bytes / transport.bytes_per_second


def batch_seconds(
    measured: Mapping[int, float], images: float, ranks: int, cores: int, traffic: Traffic, transport: Transport
) -> float:
    """One batch of `ranks` ranks with so many images each, on `cores` cores in all."""
    turns = max(1.0, ranks / cores)
    return turns * work_seconds(measured, images) + message_seconds(ranks, traffic, transport)


def speed_up(plain: float, bp: float, gp: float) -> float:
    """Of ADA-GP with one GP batch for each BP batch, over plain backpropagation."""
    return 2 * plain / (bp + gp)
