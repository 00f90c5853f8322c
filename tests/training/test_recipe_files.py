from importlib import resources
from pathlib import Path

import pytest

from adagp.training import RecipeError, load_preset, load_recipe, preset_names
from adagp.training.budget.settings import BudgetSettings
from adagp.training.recipe_files import parse_assignment


def test_every_preset_loads() -> None:
    assert {"demo", "cifar10-resnet20-tuned", "cifar10-resnet20-paper"} <= set(preset_names())
    for name in preset_names():
        preset = load_preset(name)
        assert preset.about
        judged = {"bp", "topk"} if name == "approximation" else {"bp", "adagp", "skip"}
        rival = set() if name.startswith("leaderboard-") else {"short-bp"}  # bp has the same time there
        assert judged | rival <= set(preset.methods)


@pytest.mark.parametrize("setting", ["scratch", "finetuning", "translation", "next-token"])
def test_the_settings_of_the_leaderboard_can_claim_something(setting: str) -> None:
    preset = load_preset(f"leaderboard-{setting}")
    chosen = BudgetSettings.of(preset.recipe.replace(method="bp"), preset.methods, preset.seeds, preset.budget)
    assert len(chosen.seeds) == 5
    assert len(chosen.options.rates) >= 3
    assert preset.recipe.lr in chosen.options.rates
    assert preset.recipe.batch_size in chosen.options.batch_sizes
    assert preset.recipe.threads == 1  # costs are those of one core
    first = chosen.options.pretraining(chosen.recipe)
    assert (first is not None) == (setting == "finetuning")
    assert first is None or (first.data, first.model) == ("cifar100", chosen.recipe.model)


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "imagenette", "voc2007"])
def test_small_images_first_has_a_preset_for_each_set_of_images(data: str) -> None:
    (preset,) = [load_preset(name) for name in preset_names() if name.startswith(f"{data}-") and "progressive" in name]
    assert (preset.recipe.data, preset.recipe.method) == (data, "progressive")
    assert {"progressive", "coarse"} <= set(preset.methods)


def test_paper_preset_is_the_papers() -> None:
    recipe = load_preset("cifar10-resnet20-paper").recipe
    assert (recipe.optimizer, recipe.lr, recipe.momentum, recipe.lr_schedule) == ("sgd", 1e-3, 0.9, "plateau")


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


def test_presets_of_a_kind_share_what_their_base_says() -> None:
    paper, tuned = load_preset("cifar10-vgg13-paper"), load_preset("cifar10-vgg13-tuned")
    assert (paper.recipe.lr, tuned.recipe.lr, tuned.recipe.lr_warmup) == (1e-3, 0.05, 0.1)
    assert "adagp-paper" in paper.methods
    assert load_preset("imagenette-inception_v3-paper").recipe.lr == paper.recipe.lr
    assert load_preset("cifar10-resnet20-tuned").recipe.lr == 0.1  # its own
    assert {"paper", "tuned"}.isdisjoint(preset_names())


def test_a_preset_may_be_copied_and_changed(tmp_path: Path) -> None:
    text = (resources.files("adagp.training") / "presets" / "cifar10-resnet20-tuned.toml").read_text(encoding="utf-8")
    assert "base = " in text
    (tmp_path / "mine.toml").write_text(text.replace("lr = 0.1", "lr = 0.3"))
    mine, preset = load_recipe(tmp_path / "mine.toml"), load_preset("cifar10-resnet20-tuned")
    assert mine.recipe == preset.recipe.replace(lr=0.3)
    (tmp_path / "other.toml").write_text("base = '../demo'\n")
    unknown = r"recipe 'other': base = '../demo' is unknown: choose one of leaderboard, paper, progressive, tuned"
    with pytest.raises(RecipeError, match=unknown):
        load_recipe(tmp_path / "other.toml")
