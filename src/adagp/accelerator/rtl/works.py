"""The two kinds of products that every pass is made of, cut into tiles that fit the buffers.

- A `Sliding` product streams pixels past filters: a layer's forward and input gradient, the predictor's layers.
- A `Correlating` product streams taps and channels past output gradients: weight gradients. Each row of the array has
  strips of images of its own, so that its bank serves all taps.

Both keep the loader one tile ahead of the array, and the array one tile ahead of the drainer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product as pairs

from adagp.accelerator.rtl.descriptor import Drain, Load, Memory, Mode, Product
from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.program import ONCE, Loop, Program
from adagp.accelerator.rtl.tensors import Convolution, Filters, Images


@dataclass(frozen=True)
class Pool:
    """Where sums are pooled to, for the predictor.

    Attributes:
        cells: Cells along both axes; they divide the result evenly.
        out: Images of the cells.
        shift: Bits that a cell's sum is shifted right by.
        repeat: Pixels of `out` along both axes that take the same cell.
    """

    cells: tuple[int, int]
    out: Images
    shift: int
    repeat: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Finish:
    """What happens to finished sums.

    Attributes:
        out: Where they go: images, or filters for a weight gradient.
        shift: Bits that they are shifted right by.
        mode: What else happens to them.
        old: The operand of an update or a mask, laid out as `out`.
        in_place: Where in the predictor's memory the old words are, if they are there and are replaced.
        pool: Where the sums are pooled to, if they are.
    """

    out: Images | Filters
    shift: int
    mode: Mode = Mode.PLAIN
    old: Images | Filters | None = None
    in_place: "Resident | None" = None
    pool: Pool | None = None


@dataclass(frozen=True)
class _Held:
    """What a half of a memory holds.

    Attributes:
        key: What distinguishes it from other contents.
        half: The half.
        base: Its first address.
        loaded: The last load that filled it.
    """

    key: tuple[int, ...]
    half: int
    base: int
    loaded: int


@dataclass
class Pipeline:
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


@dataclass(frozen=True)
class Resident:
    """A streamed operand that stays in the predictor's memory: (rows x channels), fold after fold.

    Attributes:
        base: First address.
        rows: Rows that a fold has.
    """

    base: int
    rows: int


@dataclass(frozen=True)
class Sliding:
    """A product that streams pixels.

    Attributes:
        samples: Samples.
        out: Height and width of the result.
        k: Channels of the streamed images.
        n: Channels of the result.
        image: Height and width of the stored images.
        kernel: Taps of the window along both axes.
        x: The streamed images, or a resident operand.
        w: The filters.
        finishes: What happens to the sums, one after the other.
        step: Step of the window along both axes.
        padding: Zeros before the first pixel along both axes; negative to begin inside.
        dilation: Distance of the taps along both axes.
        apart: Distance of the stored pixels along both axes, with zeros between them.
        narrow: Whether a fold of results has only as many columns as the predictor's memory has banks.
    """

    samples: int
    out: tuple[int, int]
    k: int
    n: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    x: Images | Resident
    w: Filters
    finishes: Sequence[Finish]
    step: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    apart: tuple[int, int] = (1, 1)
    narrow: bool = False

    def emit(self, line: Pipeline) -> None:
        """Add the product to a core's program."""
        _SlidingTiles(self, line).emit()


@dataclass(frozen=True)
class _Box:
    """The pixels of a tile in the input buffer: where they begin along an axis, how many, and which are real."""

    first: int
    groups: int
    apart: int
    low: int
    high: int

    @property
    def size(self) -> int:
        return self.groups * self.apart

    def loops(self, stride: int) -> tuple[Loop, Loop]:
        """Inner loop over the zeros between pixels, outer loop over pixels."""
        return Loop(self.apart, 0, 0, 1), Loop(self.groups, stride, self.low, self.high)


def _box(first: int, last: int, apart: int, stored: int) -> _Box:
    """Pixels from `first` to `last` of an image of `stored` pixels set `apart`."""
    start = first // apart
    groups = last // apart - start + 1
    low, high = max(0, -start), max(0, min(groups, stored - start))
    return _Box(start, groups, apart, min(low, high), high)


class _SlidingTiles:
    """Tiles: folds of n are the outer loop, then samples and rows, then channels of k."""

    def __init__(self, work: Sliding, line: Pipeline) -> None:
        self.work, self.line, self.core = work, line, line.core
        core = line.core
        self.taps = work.kernel[0] * work.kernel[1]
        self.block = core.predictor_banks if isinstance(work.x, Resident) else core.rows
        self.wide = core.predictor_banks if work.narrow else core.columns
        self.n_folds = folds(work.n, self.wide)
        self.packed = self.taps > 1 and 2 * work.k <= core.rows
        self.per_fold = min(self.taps, core.rows // work.k) if self.packed else 1  # taps in one fold
        self.blocks = 1 if self.packed else folds(work.k, self.block)
        self.cells = next((finish.pool.cells for finish in work.finishes if finish.pool), None)
        self.samples, self.rows, self.k_blocks, self.n_tile = self._choose()

    # The choice of tiles.

    def _window(self, y: int, rows: int) -> _Box:
        """Rows of pixels that `rows` rows of results from `y` on need."""
        work = self.work
        first = y * work.step[0] - work.padding[0]
        last = first + (rows - 1) * work.step[0] + (work.kernel[0] - 1) * work.dilation[0]
        return _box(first, last, work.apart[0], work.image[0])

    def _columns(self) -> _Box:
        work = self.work
        first = -work.padding[1]
        last = first + (work.out[1] - 1) * work.step[1] + (work.kernel[1] - 1) * work.dilation[1]
        return _box(first, last, work.apart[1], work.image[1])

    def _k_folds(self, blocks: int) -> int:
        return folds(self.taps, self.per_fold) if self.packed else blocks * self.taps

    def _choose(self) -> tuple[int, int, int, int]:
        """Samples, rows, blocks of k and folds of n of a tile: of those that fit, the quickest by estimate."""
        best, found = None, None
        core = self.core
        for (samples, rows), blocks in pairs(self._heights(), _parts(self.blocks)):
            m = samples * rows * self.work.out[1]
            space = 0
            if not isinstance(self.work.x, Resident):
                most_rows = max(self._window(y, count).size for y, count in _ranges(self.work.out[0], rows))
                space = samples * most_rows * self._columns().size * blocks
            if space > core.input_depth // 2 or m > core.output_depth:
                continue
            room = [self.n_folds, core.output_depth // m, core.weight_depth // 2 // (self._k_folds(blocks) * core.rows)]
            if any(finish.old for finish in self.work.finishes):
                room.append(core.old_depth // 2 // m)
            if self.cells:
                room.append(core.pool_depth // (self.cells[0] * self.cells[1]))
            n_tile = min(room)
            if n_tile < 1:
                continue
            n_tile = folds(self.n_folds, folds(self.n_folds, n_tile))
            tiles = folds(self.work.samples, samples) * folds(self.work.out[0], rows)
            n_tiles, k_tiles = folds(self.n_folds, n_tile), folds(self.blocks, blocks)
            crossing = 2 * core.rows + core.columns - 2 + m
            computing = tiles * k_tiles * self.n_folds * self._k_folds(blocks) * crossing
            filling = space * (self.work.k if self.packed else 1) * tiles * n_tiles * k_tiles
            serial = core.columns if self.work.w.n != 1 else 1
            reloads = tiles if k_tiles > 1 else 1
            filling += reloads * k_tiles * self.n_folds * self._k_folds(blocks) * core.rows * serial
            first = (space + n_tile * self._k_folds(blocks) * core.rows * serial) + m * n_tile
            cost = max(computing, filling) + first
            if best is None or cost < best:
                best, found = cost, (samples, rows, blocks, n_tile)
        if found is None:
            raise ValueError(
                f"out={self.work.out[0]}x{self.work.out[1]}, k={self.work.k}: one row of results does not fit the "
                f"buffers (input_depth={core.input_depth}, weight_depth={core.weight_depth}, "
                f"output_depth={core.output_depth}); build deeper ones"
            )
        return found

    def _heights(self) -> Iterator[tuple[int, int]]:
        """Samples and rows of a tile: whole samples, or rows of one. Pooled rows keep to the cells' borders."""
        high = self.work.out[0]
        for samples in _parts(self.work.samples):
            yield samples, high
        cell = high // self.cells[0] if self.cells else 0
        for rows in range(1, high):
            if not cell or rows % cell == 0 or cell % rows == 0:
                yield 1, rows

    # The program.

    def emit(self) -> None:
        """Load, compute and drain tile after tile, each step behind the one before it."""
        waiting = None
        held: dict[Memory, _Held] = {}
        for tile in self._tiles():
            n0, _, s0, samples, y0, rows = tile
            work = self.work
            half, free = self.line.next_output()
            m = samples * rows * work.out[1]
            for number, (b0, blocks) in enumerate(_ranges(self.blocks, self.k_blocks)):
                after = list(free)
                inputs = None
                if not isinstance(work.x, Resident):
                    inputs = self._hold(held, Memory.INPUTS, (s0, y0, b0), tile, b0, blocks)
                    after.append(inputs.loaded)
                weights = self._hold(held, Memory.WEIGHTS, (n0, b0), tile, b0, blocks)
                after.append(weights.loaded)
                if waiting is not None and number == 0:
                    waiting()
                    waiting = None
                last = self._multiply(tile, half, m, b0, blocks, inputs, weights, after)
                if inputs is not None:
                    self.line.read_by(Memory.INPUTS, inputs.half, last)
                self.line.read_by(Memory.WEIGHTS, weights.half, last)

            def drain(tile: tuple[int, ...] = tile, half: int = half, last: int = last) -> None:
                self._drain(tile, half, last)

            waiting = drain
        if waiting is not None:
            waiting()

    def _tiles(self) -> Iterator[tuple[int, ...]]:
        work = self.work
        for n0, n_count in _ranges(self.n_folds, self.n_tile):
            for s0, samples in _ranges(work.samples, self.samples):
                for y0, rows in _ranges(work.out[0], self.rows):
                    yield n0, n_count, s0, samples, y0, rows

    def _hold(
        self,
        held: dict[Memory, _Held],
        memory: Memory,
        key: tuple[int, ...],
        tile: tuple[int, ...],
        b0: int,
        blocks: int,
    ) -> _Held:
        """What a product reads: what is there already, or else a new load."""
        if memory in held and held[memory].key == key:
            return held[memory]
        half, base, readers = self.line.next_half(memory)
        load = self._load_inputs if memory is Memory.INPUTS else self._load_weights
        held[memory] = _Held(key, half, base, load(tile, base, b0, blocks, readers))
        return held[memory]

    def _load_inputs(self, tile: tuple[int, ...], base: int, b0: int, blocks: int, after: list[int]) -> int:
        _, _, s0, samples, y0, rows = tile
        work, core = self.work, self.core
        assert isinstance(work.x, Images)
        down, across = self._window(y0, rows), self._columns()
        inner_x, outer_x = across.loops(work.x.pixel)
        inner_y, outer_y = down.loops(work.x.row)
        outside = (inner_x, outer_x, inner_y, outer_y, Loop(samples, work.x.sample))
        start = work.x.at(s0, down.first, across.first)
        if self.packed:
            for channel in range(work.k):
                banks = sum(1 << channel + tap * work.k for tap in range(self.per_fold))
                load = Load(Memory.INPUTS, _wrapped(start + channel), base, 1, 1, column=True, banks=banks)
                index = self.line.program.work(load, (ONCE, *outside), after)
            return index
        words = min(core.rows, work.k)
        tail = min(words, work.k - (b0 + blocks - 1) * core.rows)
        load = Load(Memory.INPUTS, _wrapped(start + b0 * core.rows), base, words, tail)
        return self.line.program.work(load, (Loop(blocks, core.rows), *outside), after)

    def _load_weights(self, tile: tuple[int, ...], base: int, b0: int, blocks: int, after: list[int]) -> int:
        n0, n_count, *_ = tile
        work, rows = self.work, self.core.rows
        size = self._k_folds(blocks) * rows
        index = -1
        for fold in range(n_count):
            first = (n0 + fold) * self.wide
            width = min(self.wide, work.n - first)
            columns = [(first, width, None)] if work.w.n == 1 else [(first + c, 1, c) for c in range(width)]
            for n, words, column in columns:
                for to, start, loops, serial in self._segments(b0, blocks):
                    at = _wrapped(work.w.base + start + n * work.w.n)
                    there = base + fold * size + to
                    if self.packed:  # fold after fold of taps, each with all columns
                        there = base + (to // rows * n_count + fold) * rows + to % rows
                    if column is None:
                        load, first_loop = Load(Memory.WEIGHTS, at, there, words, words), serial
                    else:
                        load = Load(
                            Memory.WEIGHTS, at, there, serial.count, serial.inside, column=True, banks=1 << column
                        )
                        first_loop = ONCE
                    index = self.line.program.work(load, (first_loop, *loops), after)
        return index

    def _segments(self, b0: int, blocks: int) -> Iterator[tuple[int, int, tuple[Loop, ...], Loop]]:
        """Parts of a column of filters: address in the buffer and in DRAM, loops, and the loop over k's channels."""
        work, rows = self.work, self.core.rows
        if self.packed:
            for fold in range(folds(self.taps, self.per_fold)):
                first = fold * self.per_fold
                real = min(self.per_fold, self.taps - first)
                yield fold * rows, first * work.w.tap, (Loop(real, work.w.tap),), Loop(work.k, work.w.k)
                rest = rows - real * work.k
                if rest:
                    yield fold * rows + real * work.k, 0, (), Loop(rest, 0, 0, 0)
            return
        high, wide = work.kernel
        whole = min(blocks, work.k // self.block - b0)
        taps = (Loop(wide, work.w.tap), Loop(high, wide * work.w.tap))
        if whole > 0:
            yield (
                0,
                b0 * self.block * work.w.k,
                (*taps, Loop(whole, self.block * work.w.k)),
                Loop(rows, work.w.k, 0, self.block),
            )
        if whole < blocks:
            rest = work.k - (b0 + whole) * self.block
            start = (b0 + whole) * self.block * work.w.k
            yield whole * self.taps * rows, start, taps, Loop(rows, work.w.k, 0, rest)

    def _multiply(
        self,
        tile: tuple[int, ...],
        half: int,
        m: int,
        b0: int,
        blocks: int,
        inputs: _Held | None,
        weights: _Held,
        after: list[int],
    ) -> int:
        """The products of one tile and some channels; with packed taps one for each fold."""
        _, n_count, _, samples, y0, rows = tile
        work, program = self.work, self.line.program
        if isinstance(work.x, Resident):
            program_loops = (ONCE, ONCE, Loop(samples, 1), ONCE, ONCE, Loop(blocks, work.x.rows))
            self._offsets([0] * self.core.rows)
            product = Product(
                Memory.PREDICTOR,
                m,
                blocks,
                n_count,
                work.x.base + tile[2] + b0 * work.x.rows,
                weights.base,
                accumulate=b0 > 0,
                half=half,
            )
            return program.work(product, program_loops, after)
        assert inputs is not None
        down, across = self._window(y0, rows), self._columns()
        pixel = 1 if self.packed else blocks
        line = across.size * pixel
        skipped_y = y0 * work.step[0] - work.padding[0] - down.first * work.apart[0]
        skipped_x = -work.padding[1] - across.first * work.apart[1]
        base = inputs.base + skipped_y * line + skipped_x * pixel
        stream = (
            Loop(work.out[1], work.step[1] * pixel),
            Loop(rows, work.step[0] * line),
            Loop(samples, down.size * line),
        )
        high, wide = work.kernel
        if not self.packed:
            self._offsets([0] * self.core.rows)
            k_folds = self._k_folds(blocks)
            inner = (Loop(wide, work.dilation[1] * pixel), Loop(high, work.dilation[0] * line), Loop(blocks, 1))
            product = Product(Memory.INPUTS, m, k_folds, n_count, base, weights.base, accumulate=b0 > 0, half=half)
            return program.work(product, (*stream, *inner), after)
        count = folds(self.taps, self.per_fold)
        for fold in range(count):
            self._offsets(self._tap_offsets(fold, line, pixel))
            there = weights.base + fold * n_count * self.core.rows
            product = Product(Memory.INPUTS, m, 1, n_count, base, there, accumulate=fold > 0, half=half)
            index = program.work(product, stream, after)
        return index

    def _tap_offsets(self, fold: int, line: int, pixel: int) -> list[int]:
        work, found = self.work, []
        for row in range(self.core.rows):
            tap = min(fold * self.per_fold + row // work.k, self.taps - 1)
            y, x = divmod(tap, work.kernel[1])
            found.append(y * work.dilation[0] * line + x * work.dilation[1] * pixel)
        return found

    def _offsets(self, offsets: Sequence[int]) -> None:
        for row, offset in enumerate(offsets):
            self.line.program.offset(row, offset)

    def _drain(self, tile: tuple[int, ...], half: int, last: int) -> None:
        n0, n_count, s0, samples, y0, rows = tile
        work = self.work
        m, index = samples * rows * work.out[1], -1
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
            index = _drain_tile(
                self.line,
                finish,
                start,
                loops,
                olds,
                m,
                _Columns(n0, n_count, work.n, self.wide),
                half,
                last,
                pool_base=y0 // cell_rows * across if pool else 0,
                pool_stride=down * across if pool else 0,
                old_start=finish.old.at(s0, y0, 0) if isinstance(finish.old, Images) else 0,
                place=s0,
            )
            if pool and s0 + samples == work.samples and y0 + rows == work.out[0]:
                index = self._drain_pool(pool, _Columns(n0, n_count, work.n, self.wide))
        self.line.drained_by(half, index)

    def _drain_pool(self, pool: Pool, columns: "_Columns") -> int:
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
            index = self.line.program.work(drain, (*loops, ONCE, ONCE, ONCE, Loop(columns.count, columns.wide)), ())
        return index


@dataclass(frozen=True)
class Correlating:
    """A product that streams taps and channels: `out[tap, ci, co] = sum of x[pixel + tap, ci] g[pixel, co]`.

    Attributes:
        samples: Samples.
        layer: Sizes of the layer, of one group.
        x: The layer's inputs.
        g: The gradients of its outputs.
        finishes: What happens to the sums, one after the other.
    """

    samples: int
    layer: Convolution
    x: Images
    g: Images
    finishes: Sequence[Finish]

    def emit(self, line: Pipeline) -> None:
        """Add the product to a core's program."""
        _CorrelatingTiles(self, line).emit()


class _CorrelatingTiles:
    """Each row of the array has a lane: a strip of one image. Tiles: channels, folds of n, then samples and rows."""

    def __init__(self, work: Correlating, line: Pipeline) -> None:
        self.work, self.line, self.core = work, line, line.core
        self.n_folds = folds(work.layer.c_out, line.core.columns)
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

    def _window(self, y: int, rows: int) -> tuple[int, int]:
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

    def _beats(self, channels: int) -> tuple[int, int]:
        """Beats of a pixel's channels, and the words of each."""
        count = folds(channels, self.core.beat_words)
        return count, folds(channels, count)

    def _choose(self) -> tuple[int, int, int]:
        """Channels, folds of n and rows of a tile: of those that fit, the quickest by estimate."""
        core, layer = self.core, self.work.layer
        best, found = None, None
        for channels, rows in pairs(_parts(layer.c_in), _parts(self.strip_rows)):
            m = layer.taps * channels
            beats, words = self._beats(channels)
            space = self._window(0, rows)[1] * self.across * beats * words
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
            tiles = folds(self.work.samples, self.slots) * folds(self.strip_rows, rows)
            c_tiles, n_tiles = folds(layer.c_in, channels), folds(self.n_folds, n_tile)
            k_folds = rows * layer.out[1]
            crossing = 2 * core.rows + core.columns - 2 + m
            computing = tiles * c_tiles * self.n_folds * k_folds * crossing
            lanes = min(self.work.samples, self.slots) * self.strips
            filling = tiles * c_tiles * (n_tiles * space * lanes + self.n_folds * k_folds * core.rows)
            cost = max(computing, filling) + space * lanes + n_tile * k_folds * core.rows + m * n_tile
            if best is None or cost < best:
                best, found = cost, (channels, n_tile, rows)
        if found is None:
            raise ValueError(
                f"out={layer.out[0]}x{layer.out[1]}, kernel={layer.kernel[0]}x{layer.kernel[1]}: one row of gradients "
                f"does not fit the buffers (input_depth={core.input_depth}, weight_depth={core.weight_depth}, "
                f"output_depth={core.output_depth}); build deeper ones"
            )
        return found

    def emit(self) -> None:
        """Load, compute and drain tile after tile, each step behind the one before it."""
        waiting = None
        layer = self.work.layer
        held: dict[Memory, _Held] = {}
        sums = list(pairs(_ranges(self.work.samples, self.slots), _ranges(self.strip_rows, self.rows)))
        program = self.line.program
        for row in range(self.core.rows):
            program.offset(row, 0)
        for (c0, channels), (n0, n_count) in pairs(
            _ranges(layer.c_in, self.channels), _ranges(self.n_folds, self.n_tile)
        ):
            half, free = self.line.next_output()
            m = layer.taps * channels
            for number, ((s0, samples), (y0, rows)) in enumerate(sums):
                inputs = self._hold(held, Memory.INPUTS, (c0, s0, y0), (c0, channels, s0, samples, y0, rows))
                grads = self._hold(held, Memory.WEIGHTS, (n0, s0, y0), (n0, n_count, s0, samples, y0, rows))
                if waiting is not None and number == 0:
                    waiting()
                    waiting = None
                beats, words = self._beats(channels)
                pixel = beats * words
                line = self.across * pixel
                loops = (
                    Loop(channels, 1),
                    Loop(layer.kernel[1], layer.dilation[1] * pixel),
                    Loop(layer.kernel[0], layer.dilation[0] * line),
                    Loop(layer.out[1], layer.stride[1] * pixel),
                    Loop(rows, layer.stride[0] * line),
                )
                product = Product(
                    Memory.INPUTS,
                    m,
                    rows * layer.out[1],
                    n_count,
                    inputs.base,
                    grads.base,
                    accumulate=number > 0,
                    half=half,
                )
                last = program.work(product, loops, [*free, inputs.loaded, grads.loaded])
                self.line.read_by(Memory.INPUTS, inputs.half, last)
                self.line.read_by(Memory.WEIGHTS, grads.half, last)

            def drain(tile: tuple[int, ...] = (c0, channels, n0, n_count), half: int = half, last: int = last) -> None:
                self._drain(tile, half, last)

            waiting = drain
        if waiting is not None:
            waiting()

    def _hold(self, held: dict[Memory, _Held], memory: Memory, key: tuple[int, ...], tile: tuple[int, ...]) -> _Held:
        """What a product reads: what is there already, or else a new load."""
        if memory in held and held[memory].key == key:
            return held[memory]
        half, base, readers = self.line.next_half(memory)
        load = self._load_inputs if memory is Memory.INPUTS else self._load_grads
        held[memory] = _Held(key, half, base, load(tile, base, readers))
        return held[memory]

    def _load_inputs(self, tile: tuple[int, ...], base: int, after: list[int]) -> int:
        """The strip of each lane, into the lane's bank."""
        c0, channels, s0, samples, y0, rows = tile
        layer, x = self.work.layer, self.work.x
        beats, words = self._beats(channels)
        left = -layer.padding[1]
        for sample, strip in pairs(range(samples), range(self.strips)):
            top, height = self._window(strip * self.strip_rows + y0, rows)
            loops = (
                Loop(beats, words),
                Loop(self.across, x.pixel, max(0, -left), layer.image[1] - left),
                Loop(height, x.row, max(0, -top), layer.image[0] - top),
            )
            load = Load(
                Memory.INPUTS,
                _wrapped(x.at(s0 + sample, top, left, c0)),
                base,
                words,
                channels - (beats - 1) * words,
                column=True,
                banks=1 << sample * self.strips + strip,
            )
            index = self.line.program.work(load, loops, after)
        return index

    def _load_grads(self, tile: tuple[int, ...], base: int, after: list[int]) -> int:
        """The gradients of every position, one row for each lane; lanes without one get zeros."""
        n0, n_count, s0, samples, y0, rows = tile
        layer, g, core = self.work.layer, self.work.g, self.core
        index = -1
        for fold in range(n_count):
            first = (n0 + fold) * core.columns
            words = min(core.columns, layer.c_out - first)
            to = base + fold * rows * layer.out[1] * core.rows
            for y, count, strips in self._alike(y0, rows):
                loops = (
                    Loop(self.strips, self.strip_rows * g.row, 0, strips),
                    Loop(self.slots, g.sample, 0, samples),
                    Loop(layer.out[1], g.pixel),
                    Loop(count, g.row),
                )
                load = Load(
                    Memory.WEIGHTS, g.at(s0, y, 0, first), to + (y - y0) * layer.out[1] * core.rows, words, words
                )
                index = self.line.program.work(load, loops, after)
        return index

    def _alike(self, y0: int, rows: int) -> list[tuple[int, int, int]]:
        """Rows of a strip with the same number of strips that have them: the first, how many, strips."""
        found: list[tuple[int, int, int]] = []
        for y in range(y0, y0 + rows):
            strips = folds(self.work.layer.out[0] - y, self.strip_rows)
            if found and found[-1][2] == strips:
                found[-1] = (found[-1][0], found[-1][1] + 1, strips)
            else:
                found.append((y, 1, strips))
        return found

    def _drain(self, tile: tuple[int, ...], half: int, last: int) -> None:
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
            index = _drain_tile(
                self.line,
                finish,
                out.base + c0 * out.k,
                loops,
                loops,
                layer.taps * channels,
                _Columns(n0, n_count, layer.c_out, self.core.columns),
                half,
                last,
                old_start=old.base + c0 * old.k if isinstance(old, Filters) else 0,
            )
        self.line.drained_by(half, index)


@dataclass(frozen=True)
class _Columns:
    """Some folds of the columns of a result: the first, how many, and of how many columns in all."""

    first: int
    count: int
    all: int
    wide: int

    def width(self, fold: int) -> int:
        """Columns of a fold."""
        return min(self.wide, self.all - (self.first + fold) * self.wide)


def _drain_tile(
    line: Pipeline,
    finish: Finish,
    start: int,
    loops: tuple[Loop, ...],
    olds: tuple[Loop, ...],
    m: int,
    columns: _Columns,
    half: int,
    last: int,
    *,
    pool_base: int = 0,
    pool_stride: int = 0,
    old_start: int = 0,
    place: int = 0,
) -> int:
    """Load the old words of a tile, if any, and drain its sums; returns the last drain."""
    after, folds_ = [last], range(columns.count)
    if finish.in_place is not None:
        for fold in folds_:
            width, number = columns.width(fold), columns.first + fold
            old_base = finish.in_place.base + number * finish.in_place.rows + place
            drain = Drain(
                start + number * columns.wide,
                m,
                half,
                finish.mode,
                finish.shift,
                words=width,
                tail=width,
                old_base=old_base,
                output_base=fold * m,
                in_place=True,
            )
            index = line.program.work(drain, loops, after)
        return index
    old_base = 0
    if finish.old is not None:
        old_half, old_base, readers = line.next_half(Memory.OLD)
        for fold in folds_:
            width = columns.width(fold)
            address = old_start + (columns.first + fold) * columns.wide
            load = Load(Memory.OLD, address, old_base + fold * m, width, width)
            loaded = line.program.work(load, olds, readers)
        after.append(loaded)
    drain = Drain(
        start + columns.first * columns.wide,
        columns.count * m,
        half,
        finish.mode,
        finish.shift,
        words=columns.width(0),
        tail=columns.width(columns.count - 1),
        old_base=old_base,
        pool_base=pool_base,
        pools=finish.pool is not None,
    )
    whole = (*loops, *(ONCE for _ in range(5 - len(loops))))
    index = line.program.work(drain, (*whole, Loop(columns.count, columns.wide, pool_stride=pool_stride)), after)
    if finish.old is not None:
        line.read_by(Memory.OLD, old_half, index)
    return index


def _wrapped(address: int) -> int:
    """An address that may begin before DRAM; what lies there is not read."""
    return address % (1 << 28)


def _ranges(whole: int, part: int) -> Iterator[tuple[int, int]]:
    """First and size of each part."""
    for first in range(0, whole, part):
        yield first, min(part, whole - first)


def _parts(whole: int) -> list[int]:
    """Sizes into which a whole can be cut evenly, the largest first."""
    return sorted({folds(whole, count) for count in range(1, whole + 1)}, reverse=True)
