"""The predictor's Adam: torch's own says the same."""

import pytest
import torch

from adagp.predictors.adam import Adam


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_it_is_torchs_adam(eps: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(50, generator=generator)
    torchs = torch.nn.Parameter(ours.clone())
    adam = Adam(ours, lr=0.1, milestones=(6, 3), gamma=0.5, eps=eps)
    optimizer = torch.optim.Adam([torchs], lr=0.1, eps=eps)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6], 0.5)
    for step in range(9):
        torchs.grad = torch.randn(50, generator=generator) * 10.0**-step
        assert adam.lr == pytest.approx(optimizer.param_groups[0]["lr"])
        adam.step(torchs.grad)
        optimizer.step()
        scheduler.step()
        assert torch.allclose(ours, torchs, atol=1e-6), step


def test_it_goes_on_where_it_was_saved() -> None:
    grads = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    values, again = torch.zeros(5), torch.zeros(5)
    first, second = (Adam(one, lr=0.1, milestones=(2,), gamma=0.1) for one in (values, again))
    for grad in grads[:3]:
        first.step(grad)
    again.copy_(values)
    second.load_state_dict(first.state_dict())
    for grad in grads[3:]:
        first.step(grad)
        second.step(grad)
    assert torch.equal(values, again)
    assert not torch.equal(values, torch.zeros(5))
