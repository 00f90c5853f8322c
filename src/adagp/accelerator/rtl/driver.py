"""The driver of a core: lays matrices out in the banks, and reads results back.

With R rows and C columns, a product of an (M x K) by a (K x N) matrix is laid out so that every address is a counter:

- inputs: bank r holds column `fold x R + r` of the inputs, fold after fold, M words each;
- weights: bank c holds column `fold x C + c` of the weights; for each fold along N, all of K, padded with zeros to
  whole folds;
- outputs: bank c holds column `fold x C + c` of the sums, fold after fold, M words each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adagp.accelerator.rtl.descriptor import Descriptor, Memory, Mode, Op
from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.golden import Integers

Rows = list[list[int]]
Values = Callable[[], Integers]
"""Gives a matrix when it is needed; it may depend on what was drained before."""
Keep = Callable[[Integers], None]
"""Receives a drained matrix."""


@dataclass(frozen=True)
class Command:
    """A descriptor, and the data that goes in and out for it.

    Attributes:
        descriptor: The descriptor.
        words: Gives the rows that enter, when the descriptor is accepted.
        keep: Receives the rows that left, when it is done.
    """

    descriptor: Descriptor
    words: Callable[[], Rows] = list
    keep: Callable[[Rows], None] = lambda rows: None


@dataclass(frozen=True)
class Product:
    """An (M x K) by (K x N) product on a core, and the commands it takes.

    Attributes:
        m: Rows that stream.
        k: Length of the sums.
        n: Columns of the weights.
        geometry: Sizes of the core.
        memory: The memory that holds the weights.
        weight_base: First address of the weights.
    """

    m: int
    k: int
    n: int
    geometry: CoreGeometry
    memory: Memory = Memory.WEIGHTS
    weight_base: int = 0

    def __post_init__(self) -> None:
        """Refuse a product that the buffers cannot hold."""
        size = self.geometry
        depth = size.predictor_depth if self.memory is Memory.PREDICTOR else size.weight_depth
        for name, needed, there in (
            ("input_depth", self.k_folds * self.m, size.input_depth),
            (f"{self.memory.name.lower().removesuffix('s')}_depth", self.weight_base + self.weight_rows, depth),
            ("output_depth", self.n_folds * self.m, size.output_depth),
        ):
            if needed > there:
                raise ValueError(
                    f"{name}={there}: a product of {self.m}x{self.k} by {self.k}x{self.n} needs {needed} words a bank; "
                    "build a deeper memory, or cut the layer into parts"
                )

    @property
    def k_folds(self) -> int:
        """Folds along K."""
        return folds(self.k, self.geometry.rows)

    @property
    def n_folds(self) -> int:
        """Folds along N."""
        return folds(self.n, self.geometry.columns)

    @property
    def weight_rows(self) -> int:
        """Rows of the weight memory that the weights fill."""
        return self.n_folds * self.k_folds * self.geometry.rows

    def load_inputs(self, inputs: Values) -> Command:
        """Fill the input buffer with the (M x K) matrix."""
        descriptor = Descriptor(Op.LOAD, self.k_folds * self.m, memory=Memory.INPUTS)
        return Command(descriptor, lambda: input_rows(inputs(), self.geometry))

    def load_weights(self, weights: Values) -> Command:
        """Fill the weight memory with the (K x N) matrix."""
        descriptor = Descriptor(Op.LOAD, self.weight_rows, memory=self.memory, weight_base=self.weight_base)
        return Command(descriptor, lambda: weight_rows(weights(), self.geometry))

    def multiply(self, *, accumulate: bool = False) -> Command:
        """Multiply what was loaded."""
        descriptor = Descriptor(
            Op.PRODUCT,
            self.m,
            memory=self.memory,
            accumulate=accumulate,
            k_folds=self.k_folds,
            n_folds=self.n_folds,
            weight_base=self.weight_base,
        )
        return Command(descriptor)

    def drain(self, shift: int, keep: Keep, mode: Mode = Mode.PLAIN, old: Values | None = None) -> Command:
        """Drain the (M x N) result; `old` is the operand of an update or a mask, of the same size."""
        descriptor = Descriptor(Op.DRAIN, self.n_folds * self.m, mode=mode, shift=shift)
        words: Callable[[], Rows] = list if old is None else lambda: output_rows(old(), self.geometry)
        return Command(descriptor, words, lambda rows: keep(output_matrix(rows, self.n)))

    def drain_pooled(self, shift: int, keep: Keep, mode: Mode, run: int, pool_shift: int, keep_pooled: Keep) -> Command:
        """Drain the result, and the sum of every `run` rows of it, (M / run x N); `run` must divide M."""
        descriptor = Descriptor(
            Op.DRAIN, self.n_folds * self.m, mode=mode, shift=shift, pool_run=run, pool_shift=pool_shift
        )

        def split(rows: Rows) -> None:
            mixed = np.asarray(rows, dtype=np.int64).reshape(-1, run + 1, self.geometry.columns)
            keep(output_matrix(mixed[:, :run].reshape(-1, self.geometry.columns), self.n))
            keep_pooled(output_matrix(mixed[:, run], self.n))

        return Command(descriptor, keep=split)

    def update_in_place(self, shift: int, keep: Keep, memory: Memory, weight_base: int) -> list[Command]:
        """Subtract the result, a gradient, from (M x N) weights in a memory, and drain the new weights.

        There is one command for each fold along N: weights are padded to whole folds of rows, and sums are not.
        """
        deep = folds(self.m, self.geometry.rows) * self.geometry.rows
        gathered: Rows = []

        def gather(rows: Rows) -> None:
            gathered.extend(rows)
            if len(gathered) == self.n_folds * self.m:
                keep(output_matrix(gathered, self.n))

        return [
            Command(
                Descriptor(
                    Op.DRAIN,
                    self.m,
                    memory=memory,
                    mode=Mode.UPDATE,
                    in_place=True,
                    shift=shift,
                    weight_base=weight_base + fold * deep,
                    output_base=fold * self.m,
                ),
                keep=gather,
            )
            for fold in range(self.n_folds)
        ]


def joined(command: Command) -> Command:
    """The command, which starts together with the other core's next joined command."""
    return replace(command, descriptor=replace(command.descriptor, join=True))


def input_rows(inputs: Integers, geometry: CoreGeometry) -> Rows:
    """An (M x K) matrix as rows of the input buffer."""
    return _cut(inputs, len(inputs), geometry.rows)


def weight_rows(weights: Integers, geometry: CoreGeometry) -> Rows:
    """A (K x N) matrix as rows of a weight memory."""
    return _cut(weights, folds(len(weights), geometry.rows) * geometry.rows, geometry.columns)


def output_rows(results: Integers, geometry: CoreGeometry) -> Rows:
    """An (M x N) matrix as rows of the output buffer."""
    return _cut(results, len(results), geometry.columns)


def output_matrix(rows: Sequence[Sequence[int]] | Integers, n: int) -> Integers:
    """The (M x N) matrix that rows of the output buffer hold."""
    values = np.asarray(rows, dtype=np.int64)
    parts = folds(n, values.shape[1])
    return values.reshape(parts, -1, values.shape[1]).swapaxes(0, 1).reshape(len(values) // parts, -1)[:, :n]


def _cut(matrix: Integers, rows: int, banks: int) -> Rows:
    """The columns in folds of `banks`, one fold below the other, padded with zeros."""
    parts = folds(matrix.shape[1], banks)
    padded = np.pad(matrix, ((0, rows - len(matrix)), (0, parts * banks - matrix.shape[1])))
    stacked = padded.reshape(rows, parts, banks).swapaxes(0, 1).reshape(-1, banks)
    return [[int(word) for word in row] for row in stacked]
