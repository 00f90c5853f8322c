"""What all batches share: randomness decided by a key, and how many batches an epoch has."""

import hashlib

import torch
from torch import Tensor


def generator(*key: int) -> torch.Generator:
    """A generator whose stream is decided by the key, and unrelated for keys that differ by one."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def order_of_epoch(count: int, seed: int, epoch: int, *, train: bool) -> Tensor:
    """Indices of the items in the order of that epoch: shuffled for training, else as they are."""
    return torch.randperm(count, generator=generator(seed, epoch)) if train else torch.arange(count)


def batches_per_epoch(count: int, batch_size: int, *, train: bool) -> int:
    """Training leaves out a last batch that is not full, unless it is the only one; testing never does."""
    whole, rest = divmod(count, batch_size)
    return whole if train and whole else whole + bool(rest)


def check_batch_size(batch_size: int) -> None:
    """Refuse what is no batch size.

    Raises:
        ValueError: if it is below one.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: must be at least 1, got {batch_size}")


def check_limit(limit: int | None, items: str) -> None:
    """Refuse what is no limit on the number of `items`.

    Raises:
        ValueError: if it is below one.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit: must be at least 1, or None for all {items}; got {limit}")


def check_position(epoch: int, start: int, batches: int) -> None:
    """Refuse a place that is not in an epoch, before the first batch is made.

    Raises:
        ValueError: if `epoch` is negative or `start` is not in 0..`batches`.
    """
    if epoch < 0:
        raise ValueError(f"epoch: must not be negative, got {epoch}")
    if not 0 <= start <= batches:
        raise ValueError(f"start: must be in 0..{batches} (the batches of an epoch), got {start}")


def interleaved_order(labels: Tensor) -> Tensor:
    """Indices that spread every class evenly from first to last, keeping the order inside each class.

    Any prefix then has the classes in the proportions of the whole, so that one cut makes a stratified split and a
    limited run sees every class. A rule rather than a seed: the split is the same on every machine for ever.
    """
    position = torch.empty(len(labels), dtype=torch.float64)
    for label in set(labels.tolist()):
        members = labels == label
        count = int(members.sum())
        position[members] = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    # Ties are broken by class, so that the order does not depend on that of the file.
    by_class = torch.argsort(labels, stable=True)
    return by_class[torch.argsort(position[by_class], stable=True)]
