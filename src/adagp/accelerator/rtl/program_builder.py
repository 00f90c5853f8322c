"""A core's program as it grows, and which part of each buffer is free."""

from dataclasses import dataclass, field

from adagp.accelerator.rtl.descriptor import Memory
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.program import Program


@dataclass(frozen=True)
class Held:
    """What a half of a memory holds.

    Attributes:
        memory: The memory.
        key: What distinguishes it from other contents.
        half: The half.
        base: Its first address.
        loaded: The last load that filled it.
    """

    memory: Memory
    key: tuple[int, ...]
    half: int
    base: int
    loaded: int


@dataclass
class ProgramBuilder:
    """A core's program, and which work last used each part of its buffers."""

    core: CoreGeometry
    program: Program = field(default_factory=Program)
    _readers: dict[tuple[Memory, int], int] = field(default_factory=dict)
    _half: dict[Memory, int] = field(default_factory=dict)
    _drained: dict[int, int] = field(default_factory=dict)
    _output_half: int = 0

    def next_half(self, memory: Memory) -> tuple[int, int, list[int]]:
        """The half of a memory to fill next: its number, first address, and who must have read it."""
        half = self._half[memory] = 1 - self._half.get(memory, 1)
        depth = {
            Memory.INPUTS: self.core.input_depth,
            Memory.WEIGHTS: self.core.weight_depth,
            Memory.OLD: self.core.old_depth,
        }[memory]
        readers = [self._readers[memory, half]] if (memory, half) in self._readers else []
        return half, half * (depth // 2), readers

    def read_by(self, memory: Memory, half: int, index: int) -> None:
        """Note who reads a half last."""
        self._readers[memory, half] = index

    def next_output(self) -> tuple[int, list[int]]:
        """The half of the output buffer to compute into next, and who must have drained it."""
        self._output_half = half = 1 - self._output_half
        return half, [self._drained[half]] if half in self._drained else []

    def drained_by(self, half: int, index: int) -> None:
        """Note who drains a half."""
        self._drained[half] = index

    def barrier(self, join: bool = False) -> None:
        """Let everything be done first."""
        self.program.barrier(join)
