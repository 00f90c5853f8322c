import copy

import pytest
import torch
from torch import Tensor, nn

from adagp import models
from adagp.advice.checkpointing import checkpoint_options, repeated_blocks
from adagp.advice.subject import Subject, build_subject
from adagp.measure import peak_bytes
from tests.nets import sgd


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def subject() -> Subject:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), *(Block() for _ in range(6)))
    x = torch.randn(128, 64)
    return build_subject(model, sgd(model), lambda: model(x).square().mean(), None, lambda: 0.0)


def test_gradients_are_the_same_and_memory_is_less() -> None:
    plain, tried = subject(), subject()
    (option,) = checkpoint_options(tried)
    torch.manual_seed(1)
    plain.step()
    torch.manual_seed(1)
    with option.ready():
        tried.step()
    for one, two in zip(plain.model.parameters(), tried.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert "forward" not in tried.model[1].__dict__
    whole = peak_bytes(plain.step, plain.device)
    with option.ready():
        assert peak_bytes(tried.step, tried.device) < 0.6 * whole


def test_its_lines_run_and_do_the_same() -> None:
    plain, tried = subject(), subject()
    (option,) = checkpoint_options(tried)
    whole = peak_bytes(plain.step, plain.device)
    exec("\n".join(option.code), {"model": tried.model})
    assert peak_bytes(tried.step, tried.device) < 0.6 * whole


def test_a_forward_of_the_users_own_is_kept() -> None:
    one = subject()
    own = one.model[1].forward
    one.model[1].forward = own
    (option,) = checkpoint_options(one)
    with option.ready():
        one.step()
    assert one.model[1].__dict__["forward"] == own


@pytest.mark.parametrize(("network", "count"), [("resnet20", 9), ("transformer", 6), ("vgg13", 0)])
def test_blocks_are_what_a_network_repeats(network: str, count: int) -> None:
    with torch.device("meta"):
        blocks = repeated_blocks(models.build(network))
    assert len(blocks) == count


def test_a_block_within_a_block_is_left_out() -> None:
    outer = Block()
    outer.inner.append(Block())
    assert len(repeated_blocks(nn.Sequential(outer, copy.deepcopy(outer)))) == 2
