from dataclasses import replace

import pytest
import torch

from adagp import data
from adagp.data import DataSet, Text, Translation
from adagp.data.validation import validated


def test_the_two_forms_part_the_training_images_and_share_what_is_trained_on() -> None:
    digits = data.load("digits")
    found = validated(digits, 100)
    choosing, judging = found.choosing, found.judging
    assert isinstance(choosing, DataSet)
    assert isinstance(judging, DataSet)
    assert torch.equal(choosing.train.images, judging.train.images)  # type: ignore[arg-type]
    assert torch.equal(judging.test.labels, digits.test.labels)
    assert len(choosing.test) == 100
    parts = torch.cat([choosing.train.images.flatten(1), choosing.test.images.flatten(1)])  # type: ignore[union-attr,list-item]
    whole = digits.train.images.flatten(1)  # type: ignore[union-attr]
    assert sorted(map(tuple, parts.tolist())) == sorted(map(tuple, whole.tolist()))
    assert torch.equal(validated(digits, 100).choosing.test.labels, choosing.test.labels)  # type: ignore[union-attr]


def test_every_class_is_validated_where_classes_come_in_turn_or_sorted() -> None:
    """Every fourth image of a set that holds ten classes in turn would be of five classes only."""
    mnist = data.load("mnist5k")
    order = torch.argsort(mnist.train.labels, stable=True)
    images = mnist.train.images
    assert isinstance(images, torch.Tensor)
    in_order = replace(mnist, train=replace(mnist.train, images=images[order], labels=mnist.train.labels[order]))
    for dataset in (mnist, in_order):
        held = validated(dataset, 1000).choosing
        assert isinstance(held, DataSet)
        counts = torch.bincount(held.test.labels, minlength=10)
        assert int(counts.min()) > 50, counts


def test_text_keeps_its_own_validation_split() -> None:
    pairs = tuple((str(i), str(i)) for i in range(10))
    translation = Translation("t", "a", "b", pairs, pairs[:4], pairs[:2])
    found = validated(translation, 3)
    assert found.judging == translation
    assert isinstance(found.choosing, Translation)
    assert (found.choosing.train, found.choosing.test) == (pairs, pairs[:3])
    cut = validated(replace(translation, val=()), 3)
    assert isinstance(cut.choosing, Translation)
    assert isinstance(cut.judging, Translation)
    assert sorted(cut.choosing.test + cut.judging.train) == sorted(pairs)
    assert cut.judging.test == translation.test
    text = Text("t", "train", "val", "test")
    assert validated(text, 5).choosing == replace(text, test="val")


def test_what_cannot_be_set_aside_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be set aside"):
        validated(data.load("digits"), 10_000)
    with pytest.raises(ValueError, match="no validation text"):
        validated(Text("t", "train", "", "test"), 5)
