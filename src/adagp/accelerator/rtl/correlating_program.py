"""The descriptors of a correlating product: loads, products and drains, tile after tile."""

from collections.abc import Callable
from functools import partial
from itertools import product as pairs
from typing import TYPE_CHECKING

from adagp.accelerator.rtl.correlating_tiles import CorrelatingTile, CorrelatingTiles, Strips
from adagp.accelerator.rtl.descriptor import Load, Memory, Product
from adagp.accelerator.rtl.finishing import Columns, drain_tile
from adagp.accelerator.rtl.geometry import folds
from adagp.accelerator.rtl.program import Loop
from adagp.accelerator.rtl.program_builder import Held, ProgramBuilder
from adagp.accelerator.rtl.tensors import Filters
from adagp.accelerator.rtl.tiling import wrapped

if TYPE_CHECKING:
    from adagp.accelerator.rtl.correlating import Correlating


class CorrelatingProgram:
    """Keeps the loader one tile ahead of the array, and the array one tile ahead of the drainer."""

    def __init__(self, work: "Correlating", builder: ProgramBuilder) -> None:
        """A product to be added to a core's program."""
        self.work, self.builder, self.core, self.tiles = (
            work,
            builder,
            builder.core,
            CorrelatingTiles(work, builder.core),
        )

    def emit(self) -> None:
        """Load, compute and drain tile after tile, each step behind the one before it."""
        waiting: Callable[[], None] | None = None
        held: dict[Memory, Held] = {}
        for row in range(self.core.rows):
            self.builder.program.offset(row, 0)
        for tile in self.tiles:
            half, free = self.builder.next_output()
            for number, strips in enumerate(self.tiles.strip_parts()):
                inputs = self._hold(held, Memory.INPUTS, (tile.c0, strips.s0, strips.y0), tile, strips)
                grads = self._hold(held, Memory.WEIGHTS, (tile.n0, strips.s0, strips.y0), tile, strips)
                if waiting is not None and number == 0:  # the sums before leave once the next operands are on their way
                    waiting()
                after = [*free, inputs.loaded, grads.loaded]
                last = self._multiply(tile, strips, half, inputs, grads, after, accumulate=number > 0)
                for operand in (inputs, grads):
                    self.builder.read_by(operand.memory, operand.half, last)
            waiting = partial(self._drain, tile, half, last)
        if waiting is not None:
            waiting()

    def _multiply(
        self,
        tile: CorrelatingTile,
        strips: Strips,
        half: int,
        inputs: Held,
        grads: Held,
        after: list[int],
        *,
        accumulate: bool,
    ) -> int:
        """Taps and channels stream past the gradients, position after position."""
        layer = self.work.layer
        beats, words = self.tiles.beats(tile.channels)
        pixel = beats * words
        line = self.tiles.across * pixel
        loops = (
            Loop(tile.channels, 1),
            Loop(layer.kernel[1], layer.dilation[1] * pixel),
            Loop(layer.kernel[0], layer.dilation[0] * line),
            Loop(layer.out[1], layer.stride[1] * pixel),
            Loop(strips.rows, layer.stride[0] * line),
        )
        m, k_folds = layer.taps * tile.channels, strips.rows * layer.out[1]
        product = Product(
            Memory.INPUTS, m, k_folds, tile.n_count, inputs.base, grads.base, accumulate=accumulate, half=half
        )
        return self.builder.program.work(product, loops, after)

    def _hold(
        self, held: dict[Memory, Held], memory: Memory, key: tuple[int, ...], tile: CorrelatingTile, strips: Strips
    ) -> Held:
        """What a product reads: what is there already, or else a new load."""
        if memory in held and held[memory].key == key:
            return held[memory]
        half, base, readers = self.builder.next_half(memory)
        load = self._load_inputs if memory is Memory.INPUTS else self._load_grads
        held[memory] = Held(memory, key, half, base, load(tile, strips, base, readers))
        return held[memory]

    def _load_inputs(self, tile: CorrelatingTile, strips: Strips, base: int, after: list[int]) -> int:
        """The strip of each lane, into the lane's bank."""
        c0, channels = tile.c0, tile.channels
        s0, samples, y0, rows = strips
        layer, x = self.work.layer, self.work.x
        beats, words = self.tiles.beats(channels)
        left = -layer.padding[1]
        for sample, strip in pairs(range(samples), range(self.tiles.strips)):
            top, height = self.tiles.window(strip * self.tiles.strip_rows + y0, rows)
            loops = (
                Loop(beats, words),
                Loop(self.tiles.across, x.pixel, max(0, -left), layer.image[1] - left),
                Loop(height, x.row, max(0, -top), layer.image[0] - top),
            )
            load = Load(
                Memory.INPUTS,
                wrapped(x.at(s0 + sample, top, left, c0)),
                base,
                words,
                channels - (beats - 1) * words,
                column=True,
                banks=1 << sample * self.tiles.strips + strip,
            )
            index = self.builder.program.work(load, loops, after)
        return index

    def _load_grads(self, tile: CorrelatingTile, part: Strips, base: int, after: list[int]) -> int:
        """The gradients of every position, one row for each lane; lanes without one get zeros."""
        n0, n_count = tile.n0, tile.n_count
        s0, samples, y0, rows = part
        layer, g, core = self.work.layer, self.work.g, self.core
        index = -1
        for fold in range(n_count):
            first = (n0 + fold) * core.columns
            words = min(core.columns, layer.c_out - first)
            to = base + fold * rows * layer.out[1] * core.rows
            for y, count, strips in self._alike(y0, rows):
                loops = (
                    Loop(self.tiles.strips, self.tiles.strip_rows * g.row, 0, strips),
                    Loop(self.tiles.slots, g.sample, 0, samples),
                    Loop(layer.out[1], g.pixel),
                    Loop(count, g.row),
                )
                load = Load(
                    Memory.WEIGHTS, g.at(s0, y, 0, first), to + (y - y0) * layer.out[1] * core.rows, words, words
                )
                index = self.builder.program.work(load, loops, after)
        return index

    def _alike(self, y0: int, rows: int) -> list[tuple[int, int, int]]:
        """Rows of a strip with the same number of strips that have them: the first, how many, strips."""
        found: list[tuple[int, int, int]] = []
        for y in range(y0, y0 + rows):
            strips = folds(self.work.layer.out[0] - y, self.tiles.strip_rows)
            if found and found[-1][2] == strips:
                found[-1] = (found[-1][0], found[-1][1] + 1, strips)
            else:
                found.append((y, 1, strips))
        return found

    def _drain(self, tile: CorrelatingTile, half: int, last: int) -> None:
        c0, channels, n0, n_count = tile
        layer, index = self.work.layer, -1
        for finish in self.work.finishes:
            out, old = finish.out, finish.old
            assert isinstance(out, Filters)
            loops = (
                Loop(channels, out.k),
                Loop(layer.kernel[1], out.tap),
                Loop(layer.kernel[0], layer.kernel[1] * out.tap),
            )
            index = drain_tile(
                self.builder,
                finish,
                out.base + c0 * out.k,
                loops,
                loops,
                layer.taps * channels,
                Columns(n0, n_count, layer.c_out, self.core.columns),
                half,
                last,
                old_start=old.base + c0 * old.k if isinstance(old, Filters) else 0,
            )
        self.builder.drained_by(half, index)
