from pathlib import Path

import pytest
import torch

from adagp import data
from adagp.data import DataSet
from adagp.models.inception_v3 import WithAuxiliary
from adagp.training import Recipe, RecipeError, Run
from tests.data.making import picture, write_files


@pytest.fixture
def photographs(tmp_path: Path) -> DataSet:
    """Two classes, three training and one test image each."""
    files = {
        f"{split}/{label}/{number}.png": picture(40, 40, 3 * number + place)
        for split, count in (("train", 3), ("val", 1))
        for place, label in enumerate(("a", "b"))
        for number in range(count)
    }
    write_files(tmp_path, files)
    return data.load("image-folder", tmp_path)


def test_images_in_files_come_in_the_size_that_the_form_is_made_for(photographs: DataSet) -> None:
    recipe = Recipe(model="mobilenet_v2", data="image-folder", method="bp", batch_size=2)
    sizes = {
        (form, size): next(Run(recipe.replace(form=form, image_size=size), photographs).task.epoch(0, 0))[0].shape[2:]
        for form, size in ((None, None), ("cifar", None), ("cifar", 48))
    }
    assert sizes == {(None, None): (224, 224), ("cifar", None): (32, 32), ("cifar", 48): (48, 48)}


def test_images_in_memory_keep_their_size(digits: DataSet) -> None:
    with pytest.raises(RecipeError, match=r"image_size = 16.*8 pixels wide, as published"):
        Run(Recipe(data="digits", image_size=16), digits)


def test_smoothing_changes_the_loss_of_training_only(digits: DataSet) -> None:
    recipe = Recipe(data="digits", method="bp")
    plain, smooth = Run(recipe, digits), Run(recipe.replace(label_smoothing=0.2), digits)
    assert plain.evaluate() == smooth.evaluate()
    assert plain.step().loss != smooth.step().loss


@pytest.mark.slow
def test_a_network_with_an_auxiliary_head_trains_and_is_judged_without_it(photographs: DataSet) -> None:
    recipe = Recipe(model="inception_v3", data="image-folder", method="bp", batch_size=2, steps=1, lr=1e-3)
    run = Run(recipe, photographs)
    images = torch.zeros(2, 3, 299, 299)
    assert isinstance(run.model(images), WithAuxiliary)
    before = run.model.get_parameter("AuxLogits.fc.weight").detach().clone()
    run.step()
    assert not torch.equal(run.model.get_parameter("AuxLogits.fc.weight"), before)
    assert run.finish_epoch().metrics["accuracy"] in (0.0, 0.5, 1.0)
