"""The choice of tiles for a sliding product."""

from collections.abc import Iterator
from itertools import product as pairs
from typing import TYPE_CHECKING, NamedTuple

from adagp.accelerator.rtl.finishing import Resident
from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.tiling import Box, box, parts, ranges

if TYPE_CHECKING:
    from adagp.accelerator.rtl.sliding import Sliding


class SlidingTile(NamedTuple):
    """A part of the result: some folds of n, some samples, and some rows of pixels; of each the first, and how many."""

    n0: int
    n_count: int
    s0: int
    samples: int
    y0: int
    rows: int


class SlidingTiles:
    """Tiles: folds of n are the outer loop, then samples and rows, then channels of k."""

    def __init__(self, work: "Sliding", core: CoreGeometry) -> None:
        """Choose the tiles of a product on a core."""
        self.work, self.core = work, core
        self.taps = work.kernel[0] * work.kernel[1]
        self.block = core.predictor_banks if isinstance(work.x, Resident) else core.rows
        self.wide = core.predictor_banks if work.narrow else core.columns
        self.n_folds = folds(work.n, self.wide)
        self.packed = self.taps > 1 and 2 * work.k <= core.rows
        self.per_fold = min(self.taps, core.rows // work.k) if self.packed else 1  # taps in one fold
        self.blocks = 1 if self.packed else folds(work.k, self.block)
        self.cells = next((finish.pool.cells for finish in work.finishes if finish.pool), None)
        self.samples, self.rows, self.k_blocks, self.n_tile = self._choose()

    def window(self, y: int, rows: int) -> Box:
        """Rows of pixels that `rows` rows of results from `y` on need."""
        work = self.work
        first = y * work.step[0] - work.padding[0]
        last = first + (rows - 1) * work.step[0] + (work.kernel[0] - 1) * work.dilation[0]
        return box(first, last, work.apart[0], work.image[0])

    def columns(self) -> Box:
        """Columns of pixels that a row of results needs."""
        work = self.work
        first = -work.padding[1]
        last = first + (work.out[1] - 1) * work.step[1] + (work.kernel[1] - 1) * work.dilation[1]
        return box(first, last, work.apart[1], work.image[1])

    def k_folds(self, blocks: int) -> int:
        """Folds of some blocks of k, added up in one product."""
        return folds(self.taps, self.per_fold) if self.packed else blocks * self.taps

    def _choose(self) -> tuple[int, int, int, int]:
        """Samples, rows, blocks of k and folds of n of a tile: of those that fit, the quickest by estimate."""
        core, best, found = self.core, None, None
        for (samples, rows), blocks in pairs(self._heights(), parts(self.blocks)):
            m, space = samples * rows * self.work.out[1], self._input_words(samples, rows, blocks)
            if space > core.input_depth // 2 or m > core.output_depth:
                continue
            n_tile = self._most_folds(m, blocks)
            if n_tile < 1:
                continue
            n_tile = folds(self.n_folds, folds(self.n_folds, n_tile))
            cost = self._estimated_cycles(samples, rows, blocks, n_tile, m, space)
            if best is None or cost < best:
                best, found = cost, (samples, rows, blocks, n_tile)
        if found is None:
            raise ValueError(
                f"out={self.work.out[0]}x{self.work.out[1]}, k={self.work.k}: one row of results does not fit the "
                f"buffers (input_depth={core.input_depth}, weight_depth={core.weight_depth}, "
                f"output_depth={core.output_depth}); build deeper ones"
            )
        return found

    def _input_words(self, samples: int, rows: int, blocks: int) -> int:
        """Words of a bank that the pixels of a tile take."""
        if isinstance(self.work.x, Resident):
            return 0
        most_rows = max(self.window(y, count).size for y, count in ranges(self.work.out[0], rows))
        return samples * most_rows * self.columns().size * blocks

    def _most_folds(self, m: int, blocks: int) -> int:
        """Folds of n for which the buffers have room, with `m` results each."""
        core = self.core
        room = [self.n_folds, core.output_depth // m, core.weight_depth // 2 // (self.k_folds(blocks) * core.rows)]
        if any(finish.old for finish in self.work.finishes):
            room.append(core.old_depth // 2 // m)
        if self.cells:
            room.append(core.pool_depth // (self.cells[0] * self.cells[1]))
        return min(room)

    def _estimated_cycles(self, samples: int, rows: int, blocks: int, n_tile: int, m: int, space: int) -> int:
        """Cycles of the whole product: computing or filling the buffers, and what no product hides."""
        core = self.core
        tiles = folds(self.work.samples, samples) * folds(self.work.out[0], rows)
        n_tiles, k_tiles = folds(self.n_folds, n_tile), folds(self.blocks, blocks)
        crossing = 2 * core.rows + core.columns - 2 + m
        computing = tiles * k_tiles * self.n_folds * self.k_folds(blocks) * crossing
        filling = space * (self.work.k if self.packed else 1) * tiles * n_tiles * k_tiles
        serial = core.columns if self.work.w.n != 1 else 1
        reloads = tiles if k_tiles > 1 else 1
        filling += reloads * k_tiles * self.n_folds * self.k_folds(blocks) * core.rows * serial
        first = (space + n_tile * self.k_folds(blocks) * core.rows * serial) + m * n_tile
        return max(computing, filling) + first

    def _heights(self) -> Iterator[tuple[int, int]]:
        """Samples and rows of a tile: whole samples, or rows of one. Pooled rows keep to the cells' borders."""
        high = self.work.out[0]
        for samples in parts(self.work.samples):
            yield samples, high
        cell = high // self.cells[0] if self.cells else 0
        for rows in range(1, high):
            if not cell or rows % cell == 0 or cell % rows == 0:
                yield 1, rows

    def __iter__(self) -> Iterator[SlidingTile]:
        """Every tile, in order."""
        work = self.work
        for n0, n_count in ranges(self.n_folds, self.n_tile):
            for s0, samples in ranges(work.samples, self.samples):
                for y0, rows in ranges(work.out[0], self.rows):
                    yield SlidingTile(n0, n_count, s0, samples, y0, rows)
