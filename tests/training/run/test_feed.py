from collections.abc import Iterator

import pytest

from adagp.data.order import ScaleOf
from adagp.training.run.feed import BatchFeed

AHEAD = 2


class Loader:
    """Epochs of five batches, with a record of all that was loaded; scales are asked for `AHEAD` batches ahead."""

    def __init__(self) -> None:
        self.loaded: list[tuple[int, int, float]] = []
        self.schedule = [1.0] * 5

    def epoch(self, epoch: int, start: int, scale_of: ScaleOf) -> Iterator[tuple[int, int, float]]:
        scales: list[float] = []
        for index in range(start, 5):
            scales += map(scale_of, range(start + len(scales), min(index + 1 + AHEAD, 5)))
            self.loaded.append((epoch, index, scales[index - start]))
            yield self.loaded[-1]

    def scale_of(self, epoch: int, index: int) -> float:
        return self.schedule[index]


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def feed(loader: Loader) -> BatchFeed:
    return BatchFeed(loader.epoch, loader.scale_of)


def test_each_batch_is_loaded_once_and_only_when_asked_for(loader: Loader, feed: BatchFeed) -> None:
    assert loader.loaded == []
    for place in ((0, 0), (0, 0), (0, 1), (0, 3), (1, 0), (1, 0)):
        assert feed.batch(*place) == ((*place, 1.0), 1.0)
    assert loader.loaded == [(0, 0, 1.0), (0, 1, 1.0), (0, 3, 1.0), (1, 0, 1.0)]


def test_a_batch_that_was_released_is_loaded_again(loader: Loader, feed: BatchFeed) -> None:
    feed.batch(0, 2)
    feed.forget()
    assert feed.batch(0, 2) == ((0, 2, 1.0), 1.0)
    assert loader.loaded == [(0, 2, 1.0)] * 2


def test_a_schedule_that_is_known_ahead_is_loaded_in_one_go(loader: Loader, feed: BatchFeed) -> None:
    loader.schedule = [0.5, 1.0, 0.75, 0.75, 1.0]
    started = []
    feed._epoch = lambda *place: started.append(place) or loader.epoch(*place)  # type: ignore[func-returns-value]
    for index, scale in enumerate(loader.schedule):
        assert feed.batch(0, index, scale) == ((0, index, scale), 1.0)
    assert len(started) == 1


def test_a_batch_loaded_ahead_at_another_scale_is_loaded_again(loader: Loader, feed: BatchFeed) -> None:
    loader.schedule = [0.5] * 5
    assert feed.batch(0, 0, 0.5) == ((0, 0, 0.5), 1.0)
    loader.schedule = [0.75] * 5  # decided while the first batch trained
    for index in range(1, 5):
        assert feed.batch(0, index, 0.75) == ((0, index, 0.75), 1.0)
    assert len(loader.loaded) == 5


def test_the_scale_asked_for_counts_and_not_the_one_foreseen(loader: Loader, feed: BatchFeed) -> None:
    loader.schedule = [0.5] * 5
    assert feed.batch(0, 3, 1.0) == ((0, 3, 1.0), 1.0)


def test_a_probe_makes_the_batch_smaller_and_only_a_larger_one_is_loaded_again(loader: Loader, feed: BatchFeed) -> None:
    assert feed.batch(0, 0, 0.75) == ((0, 0, 0.75), 1.0)
    assert feed.batch(0, 0, 0.5) == ((0, 0, 0.75), 0.5 / 0.75)
    assert feed.batch(0, 0, 1.0) == ((0, 0, 1.0), 1.0)
    assert feed.batch(0, 0, 0.5) == ((0, 0, 1.0), 0.5)
    assert loader.loaded == [(0, 0, 0.75), (0, 0, 1.0)]
