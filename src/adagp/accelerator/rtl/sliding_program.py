"""The descriptors of a sliding product: loads, products and drains, tile after tile."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product as pairs
from typing import TYPE_CHECKING

from adagp.accelerator.rtl.descriptor import Drain, Load, Memory, Product
from adagp.accelerator.rtl.finishing import Columns, Pool, Resident, drain_tile
from adagp.accelerator.rtl.geometry import folds
from adagp.accelerator.rtl.program import ONCE, Loop
from adagp.accelerator.rtl.program_builder import Held, ProgramBuilder
from adagp.accelerator.rtl.sliding_tiles import SlidingTile, SlidingTiles
from adagp.accelerator.rtl.tensors import Images
from adagp.accelerator.rtl.tiling import ranges, wrapped

if TYPE_CHECKING:
    from adagp.accelerator.rtl.sliding import Sliding


class SlidingProgram:
    """Keeps the loader one tile ahead of the array, and the array one tile ahead of the drainer."""

    def __init__(self, work: "Sliding", builder: ProgramBuilder) -> None:
        """A product to be added to a core's program."""
        self.work, self.builder, self.core, self.tiles = work, builder, builder.core, SlidingTiles(work, builder.core)

    def emit(self) -> None:
        """Load, compute and drain tile after tile, each step behind the one before it."""
        waiting: Callable[[], None] | None = None
        held: dict[Memory, Held] = {}
        for tile in self.tiles:
            half, free = self.builder.next_output()
            for number, (b0, blocks) in enumerate(ranges(self.tiles.blocks, self.tiles.k_blocks)):
                inputs, weights = self._operands(held, tile, b0, blocks)
                if waiting is not None and number == 0:  # the sums before leave once the next operands are on their way
                    waiting()
                operands = [operand for operand in (inputs, weights) if operand is not None]
                after = [*free, *(operand.loaded for operand in operands)]
                last = self._multiply(tile, half, b0, blocks, inputs, weights, after)
                for operand in operands:
                    self.builder.read_by(operand.memory, operand.half, last)
            waiting = partial(self._drain, tile, half, last)
        if waiting is not None:
            waiting()

    def _operands(self, held: dict[Memory, Held], tile: SlidingTile, b0: int, blocks: int) -> tuple[Held | None, Held]:
        """The inputs, unless they stay on the chip, and the weights of a product."""
        inputs = None
        if not isinstance(self.work.x, Resident):
            inputs = self._hold(held, Memory.INPUTS, (tile.s0, tile.y0, b0), tile, b0, blocks)
        return inputs, self._hold(held, Memory.WEIGHTS, (tile.n0, b0), tile, b0, blocks)

    def _hold(
        self,
        held: dict[Memory, Held],
        memory: Memory,
        key: tuple[int, ...],
        tile: SlidingTile,
        b0: int,
        blocks: int,
    ) -> Held:
        """What a product reads: what is there already, or else a new load."""
        if memory in held and held[memory].key == key:
            return held[memory]
        half, base, readers = self.builder.next_half(memory)
        load = self._load_inputs if memory is Memory.INPUTS else self._load_weights
        held[memory] = Held(memory, key, half, base, load(tile, base, b0, blocks, readers))
        return held[memory]

    def _load_inputs(self, tile: SlidingTile, base: int, b0: int, blocks: int, after: list[int]) -> int:
        _, _, s0, samples, y0, rows = tile
        work, core = self.work, self.core
        assert isinstance(work.x, Images)
        down, across = self.tiles.window(y0, rows), self.tiles.columns()
        inner_x, outer_x = across.loops(work.x.pixel)
        inner_y, outer_y = down.loops(work.x.row)
        outside = (inner_x, outer_x, inner_y, outer_y, Loop(samples, work.x.sample))
        start = work.x.at(s0, down.first, across.first)
        if self.tiles.packed:
            for channel in range(work.k):
                banks = sum(1 << channel + tap * work.k for tap in range(self.tiles.per_fold))
                load = Load(Memory.INPUTS, wrapped(start + channel), base, 1, 1, column=True, banks=banks)
                index = self.builder.program.work(load, (ONCE, *outside), after)
            return index
        words = min(core.rows, work.k)
        tail = min(words, work.k - (b0 + blocks - 1) * core.rows)
        load = Load(Memory.INPUTS, wrapped(start + b0 * core.rows), base, words, tail)
        return self.builder.program.work(load, (Loop(blocks, core.rows), *outside), after)

    def _load_weights(self, tile: SlidingTile, base: int, b0: int, blocks: int, after: list[int]) -> int:
        n0, n_count, *_ = tile
        work, rows = self.work, self.core.rows
        size = self.tiles.k_folds(blocks) * rows
        index = -1
        for fold in range(n_count):
            first = (n0 + fold) * self.tiles.wide
            width = min(self.tiles.wide, work.n - first)
            columns = [(first, width, None)] if work.w.n == 1 else [(first + c, 1, c) for c in range(width)]
            for n, words, column in columns:
                for to, start, loops, serial in self._segments(b0, blocks):
                    at = wrapped(work.w.base + start + n * work.w.n)
                    there = base + fold * size + to
                    if self.tiles.packed:  # fold after fold of taps, each with all columns
                        there = base + (to // rows * n_count + fold) * rows + to % rows
                    if column is None:
                        load, first_loop = Load(Memory.WEIGHTS, at, there, words, words), serial
                    else:
                        load = Load(
                            Memory.WEIGHTS, at, there, serial.count, serial.inside, column=True, banks=1 << column
                        )
                        first_loop = ONCE
                    index = self.builder.program.work(load, (first_loop, *loops), after)
        return index

    def _segments(self, b0: int, blocks: int) -> Iterator[tuple[int, int, tuple[Loop, ...], Loop]]:
        """Parts of a column of filters: address in the buffer and in DRAM, loops, and the loop over k's channels."""
        work, rows = self.work, self.core.rows
        if self.tiles.packed:
            for fold in range(folds(self.tiles.taps, self.tiles.per_fold)):
                first = fold * self.tiles.per_fold
                real = min(self.tiles.per_fold, self.tiles.taps - first)
                yield fold * rows, first * work.w.tap, (Loop(real, work.w.tap),), Loop(work.k, work.w.k)
                rest = rows - real * work.k
                if rest:
                    yield fold * rows + real * work.k, 0, (), Loop(rest, 0, 0, 0)
            return
        high, wide = work.kernel
        whole = min(blocks, work.k // self.tiles.block - b0)
        taps = (Loop(wide, work.w.tap), Loop(high, wide * work.w.tap))
        if whole > 0:
            yield (
                0,
                b0 * self.tiles.block * work.w.k,
                (*taps, Loop(whole, self.tiles.block * work.w.k)),
                Loop(rows, work.w.k, 0, self.tiles.block),
            )
        if whole < blocks:
            rest = work.k - (b0 + whole) * self.tiles.block
            start = (b0 + whole) * self.tiles.block * work.w.k
            yield whole * self.tiles.taps * rows, start, taps, Loop(rows, work.w.k, 0, rest)

    def _multiply(
        self,
        tile: SlidingTile,
        half: int,
        b0: int,
        blocks: int,
        inputs: Held | None,
        weights: Held,
        after: list[int],
    ) -> int:
        """The products of one tile and some channels; returns the last one."""
        if inputs is None:
            return self._multiply_resident(tile, half, b0, blocks, weights, after)
        down, across = self.tiles.window(tile.y0, tile.rows), self.tiles.columns()
        work, pixel = self.work, 1 if self.tiles.packed else blocks
        line = across.size * pixel
        skipped_y = tile.y0 * work.step[0] - work.padding[0] - down.first * work.apart[0]
        skipped_x = -work.padding[1] - across.first * work.apart[1]
        base = inputs.base + skipped_y * line + skipped_x * pixel
        stream = (
            Loop(work.out[1], work.step[1] * pixel),
            Loop(tile.rows, work.step[0] * line),
            Loop(tile.samples, down.size * line),
        )
        if self.tiles.packed:
            return self._multiply_packed(tile, half, base, line, stream, weights, after)
        self._offsets([0] * self.core.rows)
        high, wide = work.kernel
        taps = (Loop(wide, work.dilation[1] * pixel), Loop(high, work.dilation[0] * line), Loop(blocks, 1))
        m, k_folds = self._results(tile), self.tiles.k_folds(blocks)
        product = Product(Memory.INPUTS, m, k_folds, tile.n_count, base, weights.base, accumulate=b0 > 0, half=half)
        return self.builder.program.work(product, (*stream, *taps), after)

    def _multiply_resident(
        self, tile: SlidingTile, half: int, b0: int, blocks: int, weights: Held, after: list[int]
    ) -> int:
        """One product of what stays in the predictor's memory."""
        x = self.work.x
        assert isinstance(x, Resident)
        self._offsets([0] * self.core.rows)
        loops = (ONCE, ONCE, Loop(tile.samples, 1), ONCE, ONCE, Loop(blocks, x.rows))
        base, m = x.base + tile.s0 + b0 * x.rows, self._results(tile)
        product = Product(Memory.PREDICTOR, m, blocks, tile.n_count, base, weights.base, accumulate=b0 > 0, half=half)
        return self.builder.program.work(product, loops, after)

    def _multiply_packed(
        self,
        tile: SlidingTile,
        half: int,
        base: int,
        line: int,
        stream: tuple[Loop, ...],
        weights: Held,
        after: list[int],
    ) -> int:
        """A product for each fold of taps, whose rows read pixels that lie apart."""
        m, index = self._results(tile), -1
        for fold in range(folds(self.tiles.taps, self.tiles.per_fold)):
            self._offsets(self._tap_offsets(fold, line))
            there = weights.base + fold * tile.n_count * self.core.rows
            product = Product(Memory.INPUTS, m, 1, tile.n_count, base, there, accumulate=fold > 0, half=half)
            index = self.builder.program.work(product, stream, after)
        return index

    def _results(self, tile: SlidingTile) -> int:
        """Results of a tile for each column."""
        return tile.samples * tile.rows * self.work.out[1]

    def _tap_offsets(self, fold: int, line: int) -> list[int]:
        """What each row adds to the address of a pixel: the tap that it holds."""
        work, found = self.work, []
        for row in range(self.core.rows):
            tap = min(fold * self.tiles.per_fold + row // work.k, self.tiles.taps - 1)
            y, x = divmod(tap, work.kernel[1])
            found.append(y * work.dilation[0] * line + x * work.dilation[1])
        return found

    def _offsets(self, offsets: Sequence[int]) -> None:
        for row, offset in enumerate(offsets):
            self.builder.program.offset(row, offset)

    def _drain(self, tile: SlidingTile, half: int, last: int) -> None:
        n0, n_count, s0, samples, y0, rows = tile
        work = self.work
        m, index = self._results(tile), -1
        for finish in work.finishes:
            assert isinstance(finish.out, Images)
            start = finish.out.at(s0, y0, 0)
            pool = finish.pool
            down, across = pool.cells if pool else (1, 1)
            cell_rows = work.out[0] // down if pool else rows
            inside = min(rows, cell_rows)
            loops = (
                Loop(work.out[1] // across, finish.out.pixel),
                Loop(across, work.out[1] // across * finish.out.pixel, pool_stride=1 if pool else 0),
                Loop(inside, finish.out.row),
                Loop(rows // inside, inside * finish.out.row, pool_stride=across if pool else 0),
                Loop(samples, finish.out.sample),
            )
            olds = (Loop(work.out[1], finish.out.pixel), Loop(rows, finish.out.row), Loop(samples, finish.out.sample))
            index = drain_tile(
                self.builder,
                finish,
                start,
                loops,
                olds,
                m,
                Columns(n0, n_count, work.n, self.tiles.wide),
                half,
                last,
                pool_base=y0 // cell_rows * across if pool else 0,
                pool_stride=down * across if pool else 0,
                old_start=finish.old.at(s0, y0, 0) if isinstance(finish.old, Images) else 0,
                place=s0,
            )
            if pool and s0 + samples == work.samples and y0 + rows == work.out[0]:
                index = self._drain_pool(pool, Columns(n0, n_count, work.n, self.tiles.wide))
        self.builder.drained_by(half, index)

    def _drain_pool(self, pool: Pool, columns: Columns) -> int:
        """Write the pooled sums of a tile's columns, as often as they are repeated; the last time clears them."""
        down, across = pool.cells
        places = list(pairs(range(pool.repeat[0]), range(pool.repeat[1])))
        for place, (y, x) in enumerate(places):
            drain = Drain(
                pool.out.at(0, y, x, columns.first * columns.wide),
                columns.count * down * across,
                shift=pool.shift,
                words=columns.width(0),
                tail=columns.width(columns.count - 1),
                from_pool=True,
                clears=place == len(places) - 1,
            )
            loops = (Loop(across, pool.repeat[1] * pool.out.pixel), Loop(down, pool.repeat[0] * pool.out.row))
            index = self.builder.program.work(drain, (*loops, ONCE, ONCE, ONCE, Loop(columns.count, columns.wide)), ())
        return index
