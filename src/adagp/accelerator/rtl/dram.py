"""DRAM outside the accelerator: its words, and how fast it serves them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """How fast DRAM serves a core; reads and writes have a channel each.

    Attributes:
        bandwidth_words: Words per cycle of each channel; a beat takes whole cycles.
        latency_cycles: Cycles from a request to the first word of its answer.
    """

    bandwidth_words: int = 16
    latency_cycles: int = 20

    def __post_init__(self) -> None:
        """Refuse a memory that answers never, or before it is asked."""
        if self.bandwidth_words < 1:
            raise ValueError(f"bandwidth={self.bandwidth_words}: must be at least 1 word per cycle")
        if not 1 <= self.latency_cycles <= 10_000:
            raise ValueError(f"latency={self.latency_cycles}: must be between 1 and 10,000 cycles")

    def beat_cycles(self, words: int) -> int:
        """Cycles that a beat occupies its channel."""
        return max(1, -(-words // self.bandwidth_words))


class Allocator:
    """Hands out regions of DRAM, one after the other."""

    def __init__(self) -> None:
        """Start at address 0."""
        self.words = 0

    def take(self, words: int) -> int:
        """The first address of a new region."""
        first, self.words = self.words, self.words + words
        if self.words > 1 << 28:
            raise ValueError(
                f"the tensors need {self.words:,} words of DRAM, and 28 bits address {1 << 28:,}; lower the batch, or "
                "let `adagp simulate network --tiles` count the cycles without running them"
            )
        return first
