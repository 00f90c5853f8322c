"""Images that stay in their files until a batch needs them, for data sets that do not fit into memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from adagp.data.decoding import WORKERS, decode_batches


@dataclass(frozen=True)
class ImageFiles:
    """Image files as one uint8 tensor (N, 3, size, size) that is read batch by batch.

    The shorter side is scaled to `size` and the centre kept. Threads decode a few batches ahead, in the order
    asked for.

    Attributes:
        paths: the files.
        size: width and height after scaling.
        workers: threads that decode.
    """

    paths: tuple[Path, ...]
    size: int
    workers: int = WORKERS

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: must be at least 1 pixel, got {self.size}")
        if self.workers < 1:
            raise ValueError(f"workers: must be at least 1, got {self.workers}")

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor of all images."""
        return torch.Size((len(self.paths), 3, self.size, self.size))

    @property
    def device(self) -> torch.device:
        """Device of the tensors that `read` yields."""
        return torch.device("cpu")

    def first(self, limit: int | None) -> "ImageFiles":
        """The first `limit` files; None for all."""
        return replace(self, paths=self.paths[:limit])

    def resized(self, size: int) -> "ImageFiles":
        """The same files at another size."""
        return replace(self, size=size)

    def read(self, batches: Iterable[Tensor], sizes: Iterable[int] | None = None) -> Iterator[Tensor]:
        """Yield the images of each batch of indices, in `sizes` of their own if given.

        Raises:
            CorruptDataError: for a file that cannot be decoded, naming it.
        """
        files = ([self.paths[index] for index in chosen.tolist()] for chosen in batches)
        for decoded in decode_batches(files, self.size if sizes is None else sizes, "crop", self.workers):
            yield torch.stack([image.pixels for image in decoded]).permute(0, 3, 1, 2)
