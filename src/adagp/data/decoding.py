"""Image files decoded by a pool of threads, in the order requested, whatever the number of threads.

Pillow releases the GIL while it decodes, so threads need no worker processes. Measured on Imagenette against processes
behind pipes, with one and two workers, as medians of 15 interleaved ratios in two runs on a busy machine:
decoding alone took 0.69-0.72 and 0.62 of the time; a small CNN trained in 0.97-1.00 and 0.94-1.05; steps of tiny
operations, bound by Python, in 0.67-0.95 and 0.73-1.21. The price is the GIL: while threads decode nonstop, such
operations take 2.2 and 2.1 times as long. Training pauses them, because they run only `BATCHES_AHEAD`.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from adagp.data.files import CorruptDataError
from adagp.extras import require

Fit = Literal["crop", "letterbox"]
WORKERS = min(4, os.cpu_count() or 1)
BATCHES_AHEAD = 2  # decoded while the model trains; this bounds the memory
# The formats of photographs, often under a wrong suffix. Pillow knows more: for EPS it would run another program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
MAX_PIXELS = 89_478_485  # Pillow's default limit, 256 MB as RGB; an image scaled up must stay below it too
GREY = (128, 128, 128)  # fills the square around a letterboxed image


@dataclass(frozen=True)
class Placement:
    """Where an image of `width` x `height` pixels lies in its square: scaled, then moved by `left` and `top`."""

    width: int
    height: int
    scaled_width: int
    scaled_height: int
    left: int
    top: int

    def to_square(self, boxes: Tensor) -> Tensor:
        """Map boxes of the image, (N, 4) as x1 y1 x2 y2 in pixels, to boxes of the square."""
        old, new = self._sizes(boxes)
        # Multiply first: then rounding moves no edge of the image out of the square.
        return boxes * new / old + self._shift(boxes)

    def to_image(self, boxes: Tensor) -> Tensor:
        """Map boxes of the square back to boxes of the image."""
        old, new = self._sizes(boxes)
        return (boxes - self._shift(boxes)) * old / new

    def _sizes(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Width and height of the image, before and after scaling."""
        old, new = (self.width, self.height), (self.scaled_width, self.scaled_height)
        return like.new_tensor(old * 2), like.new_tensor(new * 2)

    def _shift(self, like: Tensor) -> Tensor:
        return like.new_tensor([self.left, self.top] * 2)


@dataclass(frozen=True)
class Decoded:
    """The pixels of an image, (size, size, 3) uint8, and their origin in the file."""

    pixels: Tensor
    placement: Placement


def decode_batches(
    batches: Iterable[Sequence[Path]], size: int | Iterable[int], fit: Fit, workers: int = WORKERS
) -> Iterator[list[Decoded]]:
    """Decode batches of files, `BATCHES_AHEAD` batches before the consumer needs them.

    Args:
        batches: the files of each batch.
        size: width and height of the results, or those of each batch.
        fit: `crop` scales the shorter side to `size` and keeps the centre; `letterbox` scales the longer side and pads
            with grey.
        workers: number of threads that decode; they are started once and kept for later calls.

    Raises:
        CorruptDataError: when the consumer reaches a batch with a file that cannot be decoded; it names the file.
    """
    pool = _pool(os.getpid(), workers)
    pending: deque[list[Future[Decoded]]] = deque()
    sizes = repeat(size) if isinstance(size, int) else size
    try:
        for paths, pixels in zip(batches, sizes):  # noqa: B905 - sizes may be endless
            # Absolute, because the program may change its folder before a thread opens the file.
            pending.append([pool.submit(decode, path.absolute(), pixels, fit) for path in paths])
            if len(pending) > BATCHES_AHEAD:
                yield [future.result() for future in pending.popleft()]
        while pending:
            yield [future.result() for future in pending.popleft()]
    finally:
        for futures in pending:
            for future in futures:
                future.cancel()


def decode(path: Path, size: int, fit: Fit) -> Decoded:
    """Decode one file to a square of `size` pixels.

    Raises:
        CorruptDataError: if the file is not a sound image, or has more than `MAX_PIXELS`.
    """
    try:
        return _decode(path, size, fit)
    except MemoryError:
        raise  # the file is not at fault
    except Exception as error:  # a damaged image can raise nearly anything, depending on its format
        raise CorruptDataError(
            f"{path}: cannot be decoded ({type(error).__name__}: {error}); get the file again or remove it"
        ) from error


def _decode(path: Path, size: int, fit: Fit) -> Decoded:
    from PIL import Image  # only the extra `data` brings it

    if not path.is_file():
        raise ValueError("it is not a regular file")  # opening a named pipe would block
    with Image.open(path, formats=FORMATS) as source:
        width, height = source.size
        if width * height > MAX_PIXELS:  # below twice its limit Pillow only warns
            raise Image.DecompressionBombError(f"{width} x {height} pixels are more than {MAX_PIXELS:,}")
        edge = max(width, height) if fit == "letterbox" else min(width, height)
        scaled = max(1, round(width * size / edge)), max(1, round(height * size / edge))
        if scaled[0] * scaled[1] > MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels are too narrow to be cropped to a square of {size}")
        source.draft("RGB", scaled)  # a JPEG much larger than needed is decoded at 1/2, 1/4 or 1/8 of its size
        image = source.convert("RGB")
    if image.size != scaled:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (size - scaled[0]) // 2, (size - scaled[1]) // 2
    square = Image.new("RGB", (size, size), GREY)
    square.paste(image, (left, top))  # clips what lies outside of the square
    pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3)
    return Decoded(pixels, Placement(width, height, *scaled, left, top))


@cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    """One pool for all data sets. A forked child gets its own: threads do not survive a fork."""
    del process
    if workers < 1:
        raise ValueError(f"workers: must be at least 1, got {workers}")
    require("PIL")
    from PIL import Image

    Image.init()  # loads the readers of all formats, before several threads do so at once
    return ThreadPoolExecutor(workers, thread_name_prefix="adagp-decode")
