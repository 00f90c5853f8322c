import torch

from adagp.data.order import interleaved_order


def test_interleaved_order_is_stratified_for_every_prefix() -> None:
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    order = interleaved_order(labels)
    assert sorted(order.tolist()) == list(range(100))
    for n in range(1, 101):
        counts = labels[order[:n]].bincount(minlength=3)
        assert (counts - n * torch.tensor([0.6, 0.3, 0.1])).abs().max() <= 1
    for label in range(3):  # the order inside a class is kept
        members = order[labels[order] == label]
        assert torch.equal(members, members.sort().values)
