import pytest
import torch

from adagp import data


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), "images"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "images"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "labels"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "labels"),
    ],
)
def test_split_checks_its_tensors(images: torch.Tensor, labels: torch.Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        data.Split(images, labels)


def _data_set(train: list[int], test: list[int]) -> data.DataSet:
    splits = [
        data.Split(torch.zeros(len(part), 1, 4, 4, dtype=torch.uint8), torch.tensor(part).long())
        for part in (train, test)
    ]
    return data.DataSet("own", *splits, num_classes=3, channels=1, size=4, mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("train", "test", "reason"),
    [
        ([0, 1], [], "own: the split test has no images"),
        ([], [0], "own: the split train has no images"),
        ([0, 3], [0], r"own: the split train has labels outside of 0\.\.2"),
        ([0], [0, -1], r"own: the split test has labels outside of 0\.\.2"),
    ],
)
def test_a_data_set_of_ones_own_is_checked(train: list[int], test: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _data_set(train, test)


def test_images_in_memory_keep_their_size() -> None:
    dataset = data.load("digits")
    assert dataset.resized(8) is dataset
    with pytest.raises(ValueError, match="size: the images of 'digits' are 8 pixels wide"):
        dataset.resized(16)
