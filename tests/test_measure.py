import pytest
import torch

from adagp.measure import peak_bytes

MB = 1_000_000


def test_a_known_allocation(device: str) -> None:
    where = torch.device(device)

    def work() -> torch.Tensor:
        first = torch.empty(4 * MB, dtype=torch.uint8, device=where)
        second = torch.empty(2 * MB, dtype=torch.uint8, device=where)
        del first
        third = torch.empty(5 * MB, dtype=torch.uint8, device=where)
        del second
        return third

    assert peak_bytes(work, where) == pytest.approx(7 * MB, rel=0.02)


def test_backward_holds_more_than_forward(device: str) -> None:
    where = torch.device(device)
    model = torch.nn.Sequential(*(torch.nn.Linear(100, 100, bias=False) for _ in range(10))).to(where)
    images = torch.ones(1000, 100, device=where)
    activation = 1000 * 100 * 4

    def inference() -> None:
        with torch.no_grad():
            model(images)

    forward = peak_bytes(inference, where)
    full = peak_bytes(lambda: model(images).sum().backward(), where)
    assert forward == pytest.approx(2 * activation, rel=0.1)
    assert full > 10 * activation
