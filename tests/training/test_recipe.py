from pathlib import Path

import pytest

from adagp.training import Recipe, RecipeError, load_preset, load_recipe, preset_names
from adagp.training.recipe import parse_assignment


def test_every_preset_loads() -> None:
    assert {"demo", "cifar10-resnet20-tuned", "cifar10-resnet20-paper"} <= set(preset_names())
    for name in preset_names():
        preset = load_preset(name)
        assert preset.about
        judged = {"bp", "topk"} if name == "approximation" else {"bp", "adagp", "skip"}
        assert judged | {"short-bp"} <= set(preset.methods)


def test_paper_preset_is_the_papers() -> None:
    recipe = load_preset("cifar10-resnet20-paper").recipe
    assert (recipe.optimizer, recipe.lr, recipe.momentum, recipe.lr_schedule) == ("sgd", 1e-3, 0.9, "plateau")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"model": "resnet21"}, ["model", "resnet21", "resnet20"]),
        ({"data": "mnist"}, ["data", "mnist", "mnist5k"]),
        ({"method": "adapg"}, ["method", "adapg", "did you mean 'adagp'"]),
        ({"epochs": 0}, ["epochs", "at least 1"]),
        ({"lr": -1.0}, ["lr", "positive"]),
        ({"lr": float("nan")}, ["lr", "positive"]),
        ({"lr": "fast"}, ["lr", "str", "float"]),
        ({"epochs": 1.5}, ["epochs", "float", "int"]),
        ({"augment": 1}, ["augment", "bool"]),
        ({"epochs": True}, ["epochs", "bool"]),
        ({"momentum": 1.0}, ["momentum", "below 1"]),
        ({"train_limit": 10, "batch_size": 64}, ["train_limit", "batch_size", "no full batch"]),
        ({"predictor": "oracle"}, ["predictor", "oracle", "trusted"]),
        ({"method": "adagp-paper", "predictor": "trusted"}, ["predictor", "adagp-paper", "take method adagp"]),
        ({"warmup_epochs": float("inf")}, ["warmup_epochs", "0 or more"]),
        ({"warmup_epochs": float("nan")}, ["warmup_epochs", "0 or more"]),
        ({"rung_epochs": float("inf")}, ["rung_epochs", "more than 0"]),
        ({"rung_epochs": float("nan")}, ["rung_epochs", "more than 0"]),
        ({"batch_size": "abc", "train_limit": 100}, ["batch_size", "str", "int"]),
        ({"optimizer": "lion"}, ["optimizer", "sgd, adam, adamw"]),
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


def test_recipe_files(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text('about = "x"\nlr = 0.5\nmodel = "resnet14"\n[compare]\nmethods = ["bp", "skip"]\nseeds = [7]\n')
    preset = load_recipe(toml)
    assert (preset.name, preset.recipe.lr, preset.recipe.model) == ("mine", 0.5, "resnet14")
    assert (preset.methods, preset.seeds) == (("bp", "skip"), (7,))
    toml.write_text("lr = = 3")
    with pytest.raises(RecipeError, match="not valid"):
        load_recipe(toml)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = 3", r"seeds must be a list of whole numbers, such as \[0, 1\]"),
        ('seeds = ["a"]', "seeds must be a list of whole numbers"),
        ("seeds = [true]", "seeds must be a list of whole numbers"),
        ('methods = "bp"', "methods must be a list of names"),
        ("methods = [1]", "methods must be a list of names"),
        ("epochs = 3", "only 'methods' and 'seeds'"),
    ],
)
def test_unusable_compare_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(f"[compare]\n{text}\n")
    with pytest.raises(RecipeError, match=f"recipe 'mine': .*{message}"):
        load_recipe(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=0.1", 0.1),
        ("model=cnn", "cnn"),
        ("augment=false", False),
        ("predictor=none", None),
        ("include=conv=1", "conv=1"),
    ],
)
def test_assignments(text: str, value: object) -> None:
    assert parse_assignment(text)[1] == value


def test_assignment_without_value() -> None:
    with pytest.raises(RecipeError, match="field=value"):
        parse_assignment("lr")


def test_ladder_is_the_papers_where_it_fits_and_scaled_where_not() -> None:
    full = Recipe().ladder(total_steps=90 * 100, steps_per_epoch=100)
    assert (full.warmup_steps, full.rung_steps) == (1000, 400)
    short = Recipe().ladder(total_steps=13 * 100, steps_per_epoch=100)
    assert (short.warmup_steps, short.rung_steps) == (500, 200)
    explicit = Recipe(warmup_epochs=0.5, rung_epochs=1).ladder(total_steps=400, steps_per_epoch=100)
    assert (explicit.warmup_steps, explicit.rung_steps) == (50, 100)


@pytest.mark.parametrize(("field", "value"), [("data", "multi30k"), ("data", "voc2007"), ("model", "transformer")])
def test_what_is_for_another_task_is_not_called_unknown(field: str, value: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field} '{value}' is not for image classification.*choose one of"):
        Recipe.from_mapping({field: value})
