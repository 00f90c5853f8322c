"""The choice of tiles for a correlating product."""

from collections.abc import Iterator
from itertools import product as pairs
from typing import TYPE_CHECKING, NamedTuple

from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.tiling import parts, ranges

if TYPE_CHECKING:
    from adagp.accelerator.rtl.correlating import Correlating


class CorrelatingTile(NamedTuple):
    """A part of a weight gradient: some input channels and some folds of n; of each the first, and how many."""

    c0: int
    channels: int
    n0: int
    n_count: int


class Strips(NamedTuple):
    """What a product adds up: some samples, and some rows of the strip of each lane; the first, and how many."""

    s0: int
    samples: int
    y0: int
    rows: int


class CorrelatingTiles:
    """Each row of the array has a lane: a strip of one image. Tiles: channels, folds of n, then samples and rows."""

    def __init__(self, work: "Correlating", core: CoreGeometry) -> None:
        """Choose the tiles of a product on a core."""
        self.work, self.core = work, core
        self.n_folds = folds(work.layer.c_out, core.columns)
        self.strips = self._strips()
        self.strip_rows = folds(work.layer.out[0], self.strips)
        self.channels, self.n_tile, self.rows = self._choose()

    def _strips(self) -> int:
        """Strips of an image: as many as rows are left over by the samples, of the divisors of the rows."""
        rows, high = self.core.rows, self.work.layer.out[0]
        fitting = [d for d in range(1, rows + 1) if rows % d == 0 and d <= high]
        return min(fitting, key=lambda d: (folds(self.work.samples, rows // d) * folds(high, d), d))

    @property
    def slots(self) -> int:
        """Samples that are computed at once."""
        return self.core.rows // self.strips

    def window(self, y: int, rows: int) -> tuple[int, int]:
        """First row of pixels, and how many, that `rows` rows of output gradients need."""
        layer = self.work.layer
        return y * layer.stride[0] - layer.padding[0], (rows - 1) * layer.stride[0] + (
            layer.kernel[0] - 1
        ) * layer.dilation[0] + 1

    @property
    def across(self) -> int:
        """Columns of pixels in the buffer."""
        layer = self.work.layer
        return (layer.out[1] - 1) * layer.stride[1] + (layer.kernel[1] - 1) * layer.dilation[1] + 1

    def beats(self, channels: int) -> tuple[int, int]:
        """Beats of a pixel's channels, and the words of each."""
        count = folds(channels, self.core.beat_words)
        return count, folds(channels, count)

    def _choose(self) -> tuple[int, int, int]:
        """Channels, folds of n and rows of a tile: of those that fit, the quickest by estimate."""
        core, layer = self.core, self.work.layer
        best, found = None, None
        for channels, rows in pairs(parts(layer.c_in), parts(self.strip_rows)):
            m = layer.taps * channels
            beats, words = self.beats(channels)
            space = self.window(0, rows)[1] * self.across * beats * words
            room = [
                self.n_folds,
                core.output_depth // m,
                core.weight_depth // 2 // (rows * layer.out[1] * core.rows),
                *([core.old_depth // 2 // m] if any(finish.old for finish in self.work.finishes) else []),
            ]
            n_tile = min(room)
            if space > core.input_depth // 2 or n_tile < 1:
                continue
            n_tile = folds(self.n_folds, folds(self.n_folds, n_tile))
            cost = self._estimated_cycles(channels, n_tile, rows, space)
            if best is None or cost < best:
                best, found = cost, (channels, n_tile, rows)
        if found is None:
            raise ValueError(
                f"out={layer.out[0]}x{layer.out[1]}, kernel={layer.kernel[0]}x{layer.kernel[1]}: one row of gradients "
                f"does not fit the buffers (input_depth={core.input_depth}, weight_depth={core.weight_depth}, "
                f"output_depth={core.output_depth}); build deeper ones"
            )
        return found

    def _estimated_cycles(self, channels: int, n_tile: int, rows: int, space: int) -> int:
        """Cycles of the whole product: computing or filling the buffers, and what no product hides."""
        core, layer = self.core, self.work.layer
        m, k_folds = layer.taps * channels, rows * layer.out[1]
        tiles = folds(self.work.samples, self.slots) * folds(self.strip_rows, rows)
        c_tiles, n_tiles = folds(layer.c_in, channels), folds(self.n_folds, n_tile)
        crossing = 2 * core.rows + core.columns - 2 + m
        computing = tiles * c_tiles * self.n_folds * k_folds * crossing
        lanes = min(self.work.samples, self.slots) * self.strips
        filling = tiles * c_tiles * (n_tiles * space * lanes + self.n_folds * k_folds * core.rows)
        return max(computing, filling) + space * lanes + n_tile * k_folds * core.rows + m * n_tile

    def __iter__(self) -> Iterator[CorrelatingTile]:
        """Every tile, in order."""
        for (c0, channels), (n0, n_count) in pairs(
            ranges(self.work.layer.c_in, self.channels), ranges(self.n_folds, self.n_tile)
        ):
            yield CorrelatingTile(c0, channels, n0, n_count)

    def strip_parts(self) -> list[Strips]:
        """What the products of a tile add up, one after the other."""
        return [
            Strips(s0, samples, y0, rows)
            for (s0, samples), (y0, rows) in pairs(
                ranges(self.work.samples, self.slots), ranges(self.strip_rows, self.rows)
            )
        ]
