import pytest
import torch
from torch import nn
from torch.nn import functional

from adagp import models
from adagp.models.inception_v3 import InceptionAux, WithAuxiliary, classification_loss
from adagp.models.inception_v4 import Branches


def test_auxiliary_logits_only_while_training() -> None:
    with torch.device("meta"):
        model = models.build("inception_v3", "imagenet", num_classes=7)
        images = torch.zeros(2, 3, 299, 299)
        trained = model(images)
        assert isinstance(trained, WithAuxiliary)
        assert trained.logits.shape == trained.aux_logits.shape == (2, 7)
        assert model.eval()(images).shape == (2, 7)
        assert model(torch.zeros(2, 3, 75, 75)).shape == (2, 7)
        assert models.build("inception_v3", num_classes=7)(images).shape == (2, 7)
        with pytest.raises(
            ValueError, match=r"images: only 16x16 positions .* 299x299 or more, or build the form cifar"
        ):
            model.train()(torch.zeros(2, 3, 298, 298))


def test_auxiliary_head_ends_at_one_position() -> None:
    with torch.device("meta"):
        model = models.build("inception_v3", "imagenet")
    assert isinstance(model.AuxLogits, InceptionAux)
    ends = []
    model.AuxLogits.conv1.register_forward_hook(lambda module, inputs, output: ends.append(output.shape))
    model(torch.zeros(2, 3, 299, 299, device="meta"))
    assert ends == [(2, 768, 1, 1)]


def test_initialisation_is_the_published_one() -> None:
    torch.manual_seed(0)
    model = models.build("inception_v3")
    assert model.Mixed_5b.branch5x5_2.conv.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert model.fc.weight.std().item() == pytest.approx(0.1, rel=0.02)


def test_classification_loss_weighs_the_auxiliary_head() -> None:
    torch.manual_seed(0)
    logits, auxiliary, labels = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([0, 1, 2, 4])
    alone = functional.cross_entropy(logits, labels)
    assert torch.equal(classification_loss(logits, labels), alone)
    both = classification_loss(WithAuxiliary(logits, auxiliary), labels)
    assert both.item() == pytest.approx(alone.item() + 0.4 * functional.cross_entropy(auxiliary, labels).item())
    smooth = classification_loss(logits, labels, label_smoothing=0.1)
    uniform = -logits.log_softmax(1).mean()
    assert smooth.item() == pytest.approx(0.9 * alone.item() + 0.1 * uniform.item())


def test_branches_join_in_the_order_given() -> None:
    x = torch.rand(1, 1, 2, 2)
    joined = Branches(second=nn.Identity(), first=nn.ReLU())(-x)
    assert torch.equal(joined, torch.cat((-x, torch.zeros_like(x)), 1))
