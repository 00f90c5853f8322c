from collections.abc import Iterator

import pytest

from adagp.training.run.feed import BatchFeed


class Loader:
    """Epochs of five batches, with a record of all that was loaded."""

    def __init__(self) -> None:
        self.loaded: list[tuple[int, int]] = []

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[int, int]]:
        for index in range(start, 5):
            self.loaded.append((epoch, index))
            yield epoch, index


@pytest.fixture
def loader() -> Loader:
    return Loader()


def test_each_batch_is_loaded_once_and_only_when_asked_for(loader: Loader) -> None:
    feed = BatchFeed(loader.epoch)
    assert loader.loaded == []
    for place in ((0, 0), (0, 0), (0, 1), (0, 3), (1, 0), (1, 0)):
        assert feed.batch(*place) == place
    assert loader.loaded == [(0, 0), (0, 1), (0, 3), (1, 0)]


def test_a_batch_that_was_released_is_loaded_again(loader: Loader) -> None:
    feed = BatchFeed(loader.epoch)
    feed.batch(0, 2)
    feed.forget()
    assert feed.batch(0, 2) == (0, 2)
    assert loader.loaded == [(0, 2), (0, 2)]
