import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import coarse, data, models

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def _split(count: int, size: int = 6) -> data.Split:
    """Images that can be told apart: every pixel of image i is i (mod 256), and so is its label."""
    index = torch.arange(count)
    return data.Split((index % 256).to(torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 3, size, size), index)


def _noise(count: int, size: int) -> data.Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    return data.Split(images, torch.arange(count))


def _batches(split: data.Split, batch_size: int, **options: object) -> data.Batches:
    return data.Batches(split, batch_size, **({"seed": 1, "train": True, "mean": MEAN, "std": STD} | options))  # type: ignore[arg-type]


def _labels(batches: data.Batches, epoch: int) -> list[int]:
    return [int(y) for _, labels in batches.epoch(epoch) for y in labels]


def _equal(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(p, q) and torch.equal(s, t) for (p, s), (q, t) in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(
    ("count", "batch_size", "train", "expected"),
    [(10, 3, True, 3), (10, 3, False, 4), (9, 3, True, 3), (9, 3, False, 3), (2, 3, True, 1), (2, 3, False, 1)],
)
def test_length_and_the_partial_batch(count: int, batch_size: int, train: bool, expected: int) -> None:
    batches = _batches(_split(count), batch_size, train=train)
    sizes = [len(labels) for _, labels in batches.epoch(0)]
    assert len(batches) == len(sizes) == expected
    assert sum(sizes) == batches.examples_per_epoch
    assert sum(sizes) == (count if not train or count < batch_size else count - count % batch_size)


def test_test_batches_come_in_order_and_training_batches_shuffled_without_repetition() -> None:
    split = _split(100)
    assert _labels(_batches(split, 7, train=False), 3) == list(range(100))
    shuffled = _labels(_batches(split, 10), 0)
    assert shuffled != list(range(100))
    assert sorted(shuffled) == list(range(100))


def test_order_is_a_function_of_seed_and_epoch() -> None:
    split = _split(100)
    batches = _batches(split, 10)
    list(batches.epoch(5))  # what was iterated before must not matter
    assert _labels(batches, 2) == _labels(_batches(split, 10), 2)
    assert _labels(batches, 2) != _labels(batches, 3)
    assert _labels(batches, 2) != _labels(_batches(split, 10, seed=2), 2)


def test_global_randomness_is_neither_used_nor_moved() -> None:
    batches = _batches(_noise(40, 8), 10, augment=data.Augment(padding=2, flip=True))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = list(batches.epoch(0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert _equal(first, list(batches.epoch(0)))


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    epoch=st.integers(0, 1000),
    seed=st.integers(0, 2**63 - 1),
    train=st.booleans(),
    fraction=st.floats(0, 1),
)
def test_start_resumes_bit_identically(
    count: int, batch_size: int, epoch: int, seed: int, train: bool, fraction: float
) -> None:
    augment = data.Augment(padding=2, flip=True) if train else None
    whole = list(_batches(_noise(count, 8), batch_size, seed=seed, train=train, augment=augment).epoch(epoch))
    resumed = _batches(_noise(count, 8), batch_size, seed=seed, train=train, augment=augment)
    start = round(fraction * len(whole))
    assert _equal(list(resumed.epoch(epoch, start)), whole[start:])


def test_normalisation_equals_the_formula() -> None:
    split = _noise(16, 5)
    ((images, _),) = _batches(split, 16, train=False).epoch(0)
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(1, 3, 1, 1) for v in (MEAN, STD))
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    torch.testing.assert_close(images.double(), (split.images.double() / 255 - mean) / std, rtol=0, atol=2e-6)


def test_augmentation_equals_cropping_and_flipping_one_image_at_a_time() -> None:
    images = _noise(64, 8).images
    out = data.Augment(padding=2, flip=True)(images, torch.Generator().manual_seed(3))
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    generator = torch.Generator().manual_seed(3)
    down, right = torch.randint(0, 5, (2, 64), generator=generator).tolist()
    mirrored = (torch.rand(64, generator=generator) < 0.5).tolist()
    for image, result, y, x, mirror in zip(padded, out, down, right, mirrored, strict=True):
        crop = image[:, y : y + 8, x : x + 8]
        assert torch.equal(result, crop.flip(2) if mirror else crop)
    assert set(down) == set(right) == set(range(5))  # every shift occurs
    assert set(mirrored) == {False, True}


def test_augmentation_off_changes_nothing_and_differs_by_batch_and_epoch() -> None:
    images = _noise(8, 8).images
    assert torch.equal(data.Augment()(images, torch.Generator()), images)
    same = data.Split(images[:1].repeat(20, 1, 1, 1), torch.arange(20))
    batches = _batches(same, 10, augment=data.Augment(padding=3))
    first, second = (x for x, _ in batches.epoch(0))
    third = next(iter(batches.epoch(1)))[0]
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 20),
    size=st.integers(2, 24),
    scales=st.lists(st.sampled_from([0.25, 0.5, 0.625, 0.75, 1.0]), min_size=5, max_size=5),
    padding=st.integers(0, 4),
    flip=st.booleans(),
    epoch=st.integers(0, 1000),
)
def test_a_coarse_batch_is_the_full_one_averaged_afterwards(
    count: int, size: int, scales: list[float], padding: int, flip: bool, epoch: int
) -> None:
    batches = _batches(_noise(count, size), 4, augment=data.Augment(padding, flip))
    found = list(batches.epoch(epoch, scale_of=scales.__getitem__))
    assert len(found) == len(batches)
    for (images, labels), (full, its_labels), scale in zip(found, batches.epoch(epoch), scales, strict=False):
        torch.testing.assert_close(images, coarse.images(full, scale), rtol=0, atol=3e-6)
        assert images.is_contiguous()
        assert torch.equal(labels, its_labels)


def test_scales_of_images_in_memory_are_asked_for_when_a_batch_is_due() -> None:
    asked: list[int] = []
    batches = _batches(_split(10), 2)
    for done, _ in enumerate(batches.epoch(0, 1, lambda batch: asked.append(batch) or 0.5), 1):  # type: ignore[func-returns-value]
        assert asked == list(range(1, done + 1))
    assert asked == [1, 2, 3, 4]


@pytest.mark.parametrize("flip", [False, True])
def test_small_images_are_augmented_as_the_large_ones_of_the_same_random_numbers(flip: bool) -> None:
    small = _noise(200, 8).images
    large = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    augment = data.Augment(padding=3, flip=flip)
    out = augment(small, torch.Generator().manual_seed(3), 0.5).float()
    expected = coarse.images(augment(large, torch.Generator().manual_seed(3)).float(), 0.5)
    shift = torch.randint(0, 7, (2, 200), generator=torch.Generator().manual_seed(3)) - 3
    even = (shift % 2 == 0).all(0)
    assert 20 < even.sum() < 100
    assert torch.equal(out[even], expected[even])
    # An odd shift moves a small image by half a pixel: the large one is the mean of two whole shifts, out is one.
    padded = nn.functional.pad(small, (2, 2, 2, 2)).float()
    crops = torch.stack([padded[:, :, y : y + 8, x : x + 8] for y in range(5) for x in range(5)])
    crops = torch.cat((crops, crops.flip(4))) if flip else crops
    assert (crops == out).flatten(2).all(2).any(0).all()
    # Half a pixel along both axes is the furthest; any other crop of noise is further than that.
    distance = (crops - expected).abs().flatten(2).mean(2)
    assert ((out - expected).abs().flatten(1).mean(1) <= distance.sort(0).values[3] + 1e-3).all()


def test_limit_takes_the_first_images() -> None:
    assert sorted(_labels(_batches(_split(100), 10, limit=30), 0)) == list(range(30))
    assert len(_batches(_split(100), 10, limit=1000)) == 10


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"limit": 0}, "limit"),
        ({"mean": (0.5,)}, "mean"),
        ({"std": (0.5, 0.0, 0.5)}, "std"),
        ({"train": False, "augment": data.Augment()}, "augment"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _batches(_split(10), **({"batch_size": 5} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "start", "named"), [(-1, 0, "epoch"), (0, -1, "start"), (0, 3, "start")])
def test_bad_positions_are_refused_before_the_first_batch(epoch: int, start: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _batches(_split(10), 5).epoch(epoch, start)


def test_start_at_the_end_gives_nothing() -> None:
    assert list(_batches(_split(10), 5).epoch(0, 2)) == []


def test_empty_split_and_negative_padding_are_refused() -> None:
    with pytest.raises(ValueError, match="split"):
        _batches(_split(0), 5)
    with pytest.raises(ValueError, match="padding"):
        data.Augment(padding=-1)


def test_loader_costs_less_than_a_twentieth_of_a_resnet20_batch() -> None:
    batches = _batches(_noise(64 * 4, 32), 64, augment=data.Augment(padding=4, flip=True))
    model = models.build("resnet20")

    def seconds_of_batch() -> tuple[float, float]:
        begin = time.perf_counter()
        images, labels = next(iterator)
        loaded = time.perf_counter()
        nn.functional.cross_entropy(model(images), labels % 10).backward()
        return loaded - begin, time.perf_counter() - loaded

    iterator = batches.epoch(0)
    times = [seconds_of_batch() for _ in range(3)]
    assert min(load for load, _ in times) < 0.05 * min(train for _, train in times)
