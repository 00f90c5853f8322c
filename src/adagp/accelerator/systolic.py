"""Cycles of a matrix product on a systolic array, in closed form.

The array keeps one operand and streams the others past it. An operand larger than the array is cut into *folds* that
run one after the other. A fold that fills only a part of the array takes as long as a full one. For R rows, C
columns and a product of (M x K) by (K x N), one fold takes

- weight stationary (WS): R to load the weights, M to stream the inputs, R + C - 2 for the last to cross the array;
- input stationary (IS): the same with weights and inputs exchanged, so N streams;
- output stationary (OS): K to accumulate, R + C - 2 for the last operands to reach the far corner; results leave
  while the next fold runs.

These are the formulas of SCALE-Sim (Samajdar et al., "A systematic methodology for characterizing scalability of DNN
accelerators using SCALE-Sim", ISPASS 2020). Version 3.0.0 of the program prints one cycle less, whatever the layer: it
counts the last cycle from zero.

Between buffer and array, the stationary operand moves once and a streamed one once per fold. Sums over a part of K are
written in every fold, and read back in all but the first.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from adagp.accelerator.shapes import Gemm


def ws_cycles(gemm: Gemm, rows: int, columns: int) -> int:
    """The (K x N) operand stays in the array."""
    folds = _ceil(gemm.k, rows) * _ceil(gemm.n, columns)
    return gemm.count * folds * (2 * rows + columns + gemm.m - 2)


def is_cycles(gemm: Gemm, rows: int, columns: int) -> int:
    """The (M x K) operand stays in the array."""
    folds = _ceil(gemm.k, rows) * _ceil(gemm.m, columns)
    return gemm.count * folds * (2 * rows + columns + gemm.n - 2)


def os_cycles(gemm: Gemm, rows: int, columns: int) -> int:
    """The (M x N) result stays in the array."""
    folds = _ceil(gemm.m, rows) * _ceil(gemm.n, columns)
    return gemm.count * folds * (rows + columns + gemm.k - 2)


def ws_buffer_words(gemm: Gemm, rows: int, columns: int) -> int:
    """Words into and out of the array when the (K x N) operand stays."""
    deep, wide = _ceil(gemm.k, rows), _ceil(gemm.n, columns)
    return gemm.count * (gemm.k * gemm.n + wide * gemm.m * gemm.k + (2 * deep - 1) * gemm.m * gemm.n)


def is_buffer_words(gemm: Gemm, rows: int, columns: int) -> int:
    """Words into and out of the array when the (M x K) operand stays."""
    return ws_buffer_words(Gemm(gemm.n, gemm.m, gemm.k, gemm.count), rows, columns)


def os_buffer_words(gemm: Gemm, rows: int, columns: int) -> int:
    """Words into and out of the array when the (M x N) result stays."""
    high, wide = _ceil(gemm.m, rows), _ceil(gemm.n, columns)
    return gemm.count * (wide * gemm.m * gemm.k + high * gemm.k * gemm.n + gemm.m * gemm.n)


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


class Systolic(NamedTuple):
    """The formulas of a systolic dataflow, given a product, rows and columns."""

    cycles: Callable[[Gemm, int, int], int]
    buffer_words: Callable[[Gemm, int, int], int]


SYSTOLIC: Mapping[str, Systolic] = {
    "ws": Systolic(ws_cycles, ws_buffer_words),
    "os": Systolic(os_cycles, os_buffer_words),
    "is": Systolic(is_cycles, is_buffer_words),
}
