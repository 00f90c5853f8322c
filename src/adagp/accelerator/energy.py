"""The energy of moving a word, in named tables with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass

from adagp.accelerator.shapes import require_known

WORD_BITS = 16
DRAM_COST, BUFFER_COST, ARRAY_COST, REGISTER_COST = 200, 6, 2, 1
"""Energy of moving one 16-bit word, in multiply-accumulates (Eyeriss, ISCA 2016, table IV)."""


@dataclass(frozen=True)
class CostTable:
    """Energy per word of 16 bits.

    Attributes:
        unit: `MAC`, the energy of one multiply-accumulate, or `pJ`.
        dram: A word read from or written to DRAM.
        buffer: A word read from or written to the global buffer.
        source: Where the figures are from.
    """

    unit: str
    dram: float
    buffer: float
    source: str


_CACTI_READ_PJ, _CACTI_WRITE_PJ = 16.5, 7.8
_CACTI = "buffer: CACTI 7, 45 nm SRAM of 64 KB with a port of 16 bits, mean of 16.5 pJ read and 7.8 pJ write"
_BUFFER_PJ = (_CACTI_READ_PJ + _CACTI_WRITE_PJ) / 2

COST_TABLES: Mapping[str, CostTable] = {
    "eyeriss": CostTable(
        "MAC",
        DRAM_COST,
        BUFFER_COST,
        "Chen, Emer and Sze, Eyeriss, ISCA 2016, table IV: relative to a MAC of 16 bits at 65 nm",
    ),
    "horowitz": CostTable(
        "pJ",
        640 * WORD_BITS / 32,
        5 * WORD_BITS / 32,
        "Horowitz, ISSCC 2014, 45 nm, per 32 bits: DRAM 640 pJ, SRAM of 8 KB 5 pJ",
    ),
    "lpddr3": CostTable("pJ", 4.6 * WORD_BITS, _BUFFER_PJ, f"LPDDR3-1600, core only, 4.6 pJ a bit by IDD; {_CACTI}"),
    "ddr3": CostTable("pJ", 15.8 * WORD_BITS, _BUFFER_PJ, f"DDR3-1600, core only, 15.8 pJ a bit by IDD; {_CACTI}"),
}


def cost_table(name: str) -> CostTable:
    """A table by name.

    Raises:
        ValueError: If the name is unknown.
    """
    require_known("energy", name, COST_TABLES)
    return COST_TABLES[name]
