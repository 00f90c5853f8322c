"""Heads from shapes, and the losses of their outputs."""

import pytest
import torch
from torch import Tensor, nn

from adagp.local import build, cross_entropy
from adagp.local.heads import similarity

SAMPLES = 6


def classes(*shape: int) -> Tensor:
    return torch.randint(5, (SAMPLES, *shape))


@pytest.mark.parametrize(
    ("kind", "activation", "output", "target"),
    [
        ("dgl", (7,), (5,), ()),
        ("dgl", (7, 9, 9), (5,), ()),
        ("dgl", (7, 1, 1), (5,), ()),
        ("dgl", (3, 40, 24), (5,), ()),
        ("dgl", (3, 4, 6, 5), (5,), ()),
        ("dgl", (11, 8), (5,), ()),
        ("dgl", (11, 8), (11, 5), (11,)),
        ("dgl", (7, 9, 9), (5, 18, 18), (18, 18)),
        ("predsim", (7,), (5,), ()),
        ("predsim", (7, 20, 20), (5,), ()),
    ],
)
def test_a_head_is_built_from_shapes_and_teaches_the_activations(
    kind: str, activation: tuple[int, ...], output: tuple[int, ...], target: tuple[int, ...]
) -> None:
    head = build(kind, activation, output, cross_entropy)
    x = torch.randn(SAMPLES, *activation, requires_grad=True)
    loss = head(x, classes(*target))
    assert loss.shape == ()
    loss.backward()
    assert x.grad is not None
    assert bool(x.grad.ne(0).any())
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert not list(head.buffers())  # nothing that ranks would have to share


def test_a_user_builds_the_network_alone() -> None:
    head = build(lambda activation, output: nn.Linear(*activation, *output), (7,), (5,), cross_entropy)
    x, y = torch.randn(SAMPLES, 7), classes()
    assert torch.equal(head(x, y), nn.functional.cross_entropy(head.network(x), y))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "activation", "output", "message"),
    [
        ("dgl", (7,), (11, 5), r"no head is known from activations of shape \(7,\) to an output of shape \(11, 5\)"),
        ("predsim", (11, 8), (11, 5), r"use head='dgl'"),
        ("predsim", (11, 8), (5,), r"Local\(head=\.\.\.\)"),
    ],
)
def test_unknown_shapes_are_refused(
    kind: str, activation: tuple[int, ...], output: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(kind, activation, output, cross_entropy)


def test_similarity_is_the_correlation_of_each_two_samples() -> None:
    features = torch.randn(SAMPLES, 9)
    torch.testing.assert_close(similarity(features), torch.corrcoef(features))
    maps = torch.randn(SAMPLES, 9, 4, 4)
    torch.testing.assert_close(similarity(maps), torch.corrcoef(maps.flatten(2).std(2)))


def test_cross_entropy_takes_classes_tokens_and_maps() -> None:
    tokens, wanted = torch.randn(SAMPLES, 3, 5), classes(3)
    each = [nn.functional.cross_entropy(one, labels) for one, labels in zip(tokens, wanted, strict=True)]
    torch.testing.assert_close(cross_entropy(tokens, wanted), torch.stack(each).mean())
    maps = torch.randn(SAMPLES, 5, 4, 3)
    torch.testing.assert_close(cross_entropy(maps, classes(4, 3).fill_(2)), -maps.log_softmax(1)[:, 2].mean())
    with pytest.raises(ValueError, match="which are no classes and their logits"):
        cross_entropy(tokens, torch.randn(SAMPLES, 3, 5))
