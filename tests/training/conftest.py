"""Small real runs on the digits that scikit-learn carries."""

import pytest

from adagp import data
from adagp.data import DataSet
from adagp.training import Recipe


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return data.load("digits")


@pytest.fixture
def recipe() -> Recipe:
    """Fifteen batches an epoch, two epochs: warm-up, every rung, and the end within a second."""
    return Recipe(
        model="cnn", data="digits", method="adagp", epochs=2, batch_size=32, train_limit=480, test_limit=100, lr=0.02
    )
