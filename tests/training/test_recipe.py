import pytest

from adagp.training import Recipe, RecipeError


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"model": "resnet21"}, ["model", "resnet21", "resnet20"]),
        ({"data": "mnist"}, ["data", "mnist", "mnist5k"]),
        ({"method": "adapg"}, ["method", "adapg", "did you mean 'adagp'"]),
        ({"epochs": 0}, ["epochs", "at least 1"]),
        ({"lr": -1.0}, ["lr", "more than 0"]),
        ({"lr": float("nan")}, ["lr", "more than 0"]),
        ({"lr": "fast"}, ["lr", "str", "float"]),
        ({"epochs": 1.5}, ["epochs", "float", "int"]),
        ({"augment": 1}, ["augment", "bool"]),
        ({"epochs": True}, ["epochs", "bool"]),
        ({"momentum": 1.0}, ["momentum", "below 1"]),
        ({"train_limit": 10, "batch_size": 64}, ["train_limit", "batch_size", "no full batch"]),
        ({"predictor": "oracle"}, ["predictor", "oracle", "trusted"]),
        ({"method": "adagp-paper", "predictor": "trusted"}, ["predictor", "adagp-paper", "take method adagp"]),
        ({"warmup_epochs": float("inf")}, ["warmup_epochs", "at least 0"]),
        ({"warmup_epochs": float("nan")}, ["warmup_epochs", "at least 0"]),
        ({"rung_epochs": float("inf")}, ["rung_epochs", "more than 0"]),
        ({"rung_epochs": float("nan")}, ["rung_epochs", "more than 0"]),
        ({"batch_size": "abc", "train_limit": 100}, ["batch_size", "str", "int"]),
        ({"optimizer": "lion"}, ["optimizer", "sgd, adam, adamw"]),
        ({"form": "imagenet"}, ["form", "imagenet", "not a form of cnn", "cifar"]),
        ({"sizes": 3}, ["sizes", "int"]),
        ({"sizes.width": 3}, ["sizes.width", "not a size of cnn", "it has none"]),
        ({"model": "transformer", "data": "multi30k", "sizes.wide": 3}, ["sizes.wide", "layers, width, heads, hidden"]),
        ({"model": "transformer", "data": "multi30k", "sizes.width": 0}, ["sizes.width", "from 1"]),
        ({"sizes.num_classes": 3}, ["sizes.num_classes", "that can be set"]),
        ({"lr_schedule": "plateau", "lr_warmup": 0.1}, ["lr_warmup", "plateau", "set it to 0"]),
        ({"lr_warmup": 1.0}, ["lr_warmup", "below 1"]),
        ({"label_smoothing": -0.1}, ["label_smoothing", "at least 0"]),
        ({"vocabulary": 10}, ["vocabulary", "at least 259"]),
        ({"beam": 0}, ["beam", "at least 1"]),
        ({"image_size": 0}, ["image_size", "at least 1"]),
        ({"leraning_rate": 1.0}, ["unknown recipe field", "leraning_rate"]),
    ],
)
def test_unusable_values_are_named_with_the_remedy(values: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.from_mapping(values)
    for part in parts:
        assert part in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(RecipeError, match=r"model.*epochs"):
        Recipe(model="none", epochs=0)


def test_whole_numbers_stand_for_floats() -> None:
    assert Recipe.from_mapping({"lr": 1}).digest() == Recipe(lr=1.0).digest()


def test_ladder_is_the_papers_where_it_fits_and_scaled_where_not() -> None:
    full = Recipe().ladder(total_steps=90 * 100, steps_per_epoch=100)
    assert (full.warmup_steps, full.rung_steps) == (1000, 400)
    short = Recipe().ladder(total_steps=13 * 100, steps_per_epoch=100)
    assert (short.warmup_steps, short.rung_steps) == (500, 200)
    explicit = Recipe(warmup_epochs=0.5, rung_epochs=1).ladder(total_steps=400, steps_per_epoch=100)
    assert (explicit.warmup_steps, explicit.rung_steps) == (50, 100)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model": "transformer", "data": "cifar10"},
            "model 'transformer' is for translation, but data 'cifar10' is for classification.* cnn, .* multi30k$",
        ),
        (
            {"data": "multi30k"},
            "model 'cnn' is for classification, but data 'multi30k' is for translation.*transformer",
        ),
        ({"model": "yolo_v3"}, "model 'yolo_v3' is for detection.*the data from voc2007, voc2012$"),
    ],
)
def test_a_model_and_data_of_different_tasks_are_refused_with_what_would_fit(
    values: dict[str, str], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.from_mapping(values)


def test_the_form_follows_the_data_unless_it_is_chosen() -> None:
    assert (Recipe(model="vgg13", data="cifar10").network_form, Recipe().network_form) == ("cifar", "cifar")
    large = Recipe(model="inception_v3", data="imagenette")
    assert (large.network_form, large.network_pixels) == ("imagenet", 299)
    small = large.replace(form="cifar")
    assert (small.network_form, small.network_pixels) == ("cifar", 32)
    assert Recipe(model="cnn", data="imagenette").network_form == "cifar"  # the only one it has


def test_sizes_are_set_one_by_one_or_together() -> None:
    base = Recipe.from_mapping({"model": "transformer", "data": "multi30k", "sizes": {"width": 64, "heads": 4}})
    assert Recipe.from_mapping({"sizes.width": 128}, base).sizes == {"width": 128, "heads": 4}
    assert Recipe.from_mapping({"sizes": {"layers": 2}, "sizes.heads": 2}, base).sizes == {"layers": 2, "heads": 2}
    assert base.sizes == {"width": 64, "heads": 4}
    assert base.digest() != base.replace(sizes={}).digest()
