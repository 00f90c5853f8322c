"""A recipe: everything that decides the outcome of one training run, as plain values.

Imports no torch, so that help texts can name the presets at once; checking a recipe does, as networks need it.
"""

import dataclasses
import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

from adagp import data, models
from adagp.data.vocabulary import LARGEST, SMALLEST
from adagp.files import parse_json, parse_toml, read_text
from adagp.training import methods
from adagp.training.errors import RecipeError

OPTIMIZERS = ("sgd", "adam", "adamw")
LR_SCHEDULES = ("constant", "cosine", "step", "exponential", "plateau")
# Sizes of a network that follow from the data.
_FROM_DATA = ("num_classes", "in_channels", "source_vocabulary", "target_vocabulary")
_SIZE = "sizes."

# The paper's ladder in epochs: warm-up, then a share for each of 4:1, 3:1, 2:1; 1:1 takes the rest.
PAPER_WARMUP_EPOCHS = 10.0
PAPER_RUNG_EPOCHS = 4.0
# Shorter runs keep the proportions 10:4:4:4:4, so that every rung still happens.
FULL_LADDER_EPOCHS = PAPER_WARMUP_EPOCHS + 4 * PAPER_RUNG_EPOCHS


@dataclass(frozen=True)
class LadderSteps:
    """The length of ADA-GP's warm-up and of each rung, in batches.

    Batches rather than epochs, because in a short run a rung ends inside an epoch.
    """

    warmup_steps: int
    rung_steps: int


@dataclass(frozen=True)
class Recipe:
    """One training run. Every field can be set in a TOML or JSON file and overridden on the command line.

    Attributes:
        model: A name from `adagp.models.names()`.
        form: Of the model, from `adagp.models.forms(model)`. None: the first, or `imagenet` for data of large images.
        sizes: What else of `adagp.models.sizes(model, form)` shall differ from its default, such as `width`.
        data: A name from `adagp.data.names()`, of the task that the model is for.
        method: A name from `adagp.training.methods.names()`.
        epochs: Passes over the training items.
        steps: Batches in the whole run; None means `epochs` whole epochs. Learning rate and ladder are fitted to it.
        batch_size: Images or sentence pairs in a batch.
        lr: Learning rate at the start.
        optimizer: `sgd`, `adam` or `adamw`.
        momentum: Of `sgd`; the others ignore it.
        weight_decay: As the optimizer defines it.
        lr_schedule: `constant`; `cosine` to zero; `step`: a tenth after half and again after three quarters of the run;
            `exponential`: smoothly to a hundredth; `plateau`: PyTorch's ReduceLROnPlateau with its default parameters,
            on the test loss after each epoch (no images are held out for validation, so the test accuracy has had a say
            in the training).
        lr_warmup: Share of the run in which the learning rate rises from zero, before `lr_schedule` begins.
        label_smoothing: Of the cross-entropy in training: the share of probability that is spread over all classes.
        warmup_epochs: Epochs before the first predicted batch. None: the paper's 10, shortened in proportion for
            runs under 26 epochs.
        rung_epochs: Epochs of each of 4:1, 3:1 and 2:1. None: the paper's 4, shortened likewise.
        schedule: For the methods `zero`, `random` and `topk` a name from `schedules.APPROXIMATIONS` (None: `1`); for
            `table` the table itself, as text.
        topk: Output gradients kept per sample and channel by `topk`.
        topk_scale: What `topk` gradients are multiplied by.
        until: The last layer, or module, of the prefix of `prefix` and `prefix-zero`; None: half of the layers.
        predictor: A name from `adagp.predictors.names()` for `adagp`, `adaptive`, `prefix`; None: the method's own.
        include: Regular expression: only layers whose name or class matches are covered.
        exclude: Regular expression: layers whose name or class matches are left to backpropagation.
        immediate: Update each layer as soon as its output exists, as the paper's hardware does.
        seed: Decides initial weights, order and augmentation of the items.
        train_limit: Use only so many training images or sentence pairs.
        test_limit: Use only so many of the test items.
        image_size: Width and height that images in files are brought to. None: what the model's form is made for.
        augment: Augment the training images where the data set has an augmentation.
        vocabulary: Tokens of each language's vocabulary, which is learnt from the training text.
        beam: Translations kept side by side by the beam search after the last epoch; 1: no such search.
        channels_last: Keep images and convolution weights in channels-last order, which is quicker on most machines;
            text has no such order.
        threads: CPU threads; None leaves PyTorch's own choice.
    """

    model: str = "cnn"
    form: str | None = None
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    data: str = "mnist5k"
    method: str = "adagp"
    epochs: int = 6
    steps: int | None = None
    batch_size: int = 64
    lr: float = 0.05
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    lr_schedule: str = "cosine"
    lr_warmup: float = 0.0
    label_smoothing: float = 0.0
    warmup_epochs: float | None = None
    rung_epochs: float | None = None
    schedule: str | None = None
    topk: int = 1
    topk_scale: float = 1.0
    until: str | None = None
    predictor: str | None = None
    include: str | None = None
    exclude: str | None = None
    immediate: bool = False
    seed: int = 0
    train_limit: int | None = None
    test_limit: int | None = None
    image_size: int | None = None
    augment: bool = True
    vocabulary: int = 4000
    beam: int = 4
    channels_last: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        """Report every unusable value at once, before anything is loaded or trained."""
        problems = [*_type_problems(self), *_name_problems(self), *_range_problems(self)]
        if problems:
            raise RecipeError("; ".join(problems))

    @property
    def network_form(self) -> str:
        """The form of the model that is trained."""
        if self.form is not None:
            return self.form
        from adagp.models.registry import IMAGENET

        forms = models.forms(self.model)
        return IMAGENET if data.entry(self.data).large_images and IMAGENET in forms else forms[0]

    @property
    def network_pixels(self) -> int:
        """Width and height of the images that this form is made for."""
        import torch

        with torch.device("meta"):
            return models.example_inputs(self.model, self.network_form)[0].shape[-1]

    def replace(self, **changes: Any) -> Self:
        """The same recipe with some values changed, checked anew."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Every field as a plain value, fit for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], base: Self | None = None) -> Self:
        """A recipe from plain values, on top of `base` or the defaults; `sizes.width` changes one of the sizes only.

        Raises:
            RecipeError: For an unknown field (with the nearest known one) or an unusable value.
        """
        start = base or cls()
        values = _with_sizes(values, start.sizes)
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise RecipeError(
                    f"unknown recipe field '{name}'{_did_you_mean(name, known)}: choose from {', '.join(known)}"
                )
        return dataclasses.replace(start, **_as_declared(values))

    def digest(self) -> str:
        """A short fingerprint: checkpoints of one recipe are refused by another."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def differences(self, other: Self) -> list[str]:
        """The fields that differ, as readable text."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{name} {mine[name]!r} against {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]

    def ladder(self, total_steps: int, steps_per_epoch: int) -> LadderSteps:
        """Fit the paper's ladder to a run of `total_steps` batches.

        Explicit `warmup_epochs` and `rung_epochs` are taken as they are. Otherwise the paper's 10 and 4 epochs stand
        where they fit (26 epochs or more) and shrink together where they do not.
        """
        epochs = total_steps / steps_per_epoch
        scale = min(1.0, epochs / FULL_LADDER_EPOCHS)
        warmup = PAPER_WARMUP_EPOCHS * scale if self.warmup_epochs is None else self.warmup_epochs
        rung = PAPER_RUNG_EPOCHS * scale if self.rung_epochs is None else self.rung_epochs
        return LadderSteps(round(warmup * steps_per_epoch), max(1, round(rung * steps_per_epoch)))


@dataclass(frozen=True)
class Preset:
    """A recipe file: the recipe, and what `compare` does with it.

    Attributes:
        name: The preset's name or the file's stem.
        about: One line for the reader.
        recipe: The recipe.
        methods: The methods `compare` runs.
        seeds: The seeds `compare` runs each method with.
    """

    name: str
    about: str
    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]


DEFAULT_METHODS = ("bp", "adagp", "skip", "mean", "short-bp")
DEFAULT_SEEDS = (0, 1)


def preset_names() -> list[str]:
    """Names of the presets shipped with the package."""
    folder = resources.files("adagp.training") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """A preset shipped with the package.

    Raises:
        RecipeError: When there is none of that name; the message lists those that exist.
    """
    if name not in preset_names():
        raise RecipeError(f"unknown preset '{name}': choose one of {', '.join(preset_names())}")
    return _parse(name, _preset_values(name))


def preset_summaries() -> dict[str, str]:
    """What each preset is about, for help texts; the recipes themselves are not checked."""
    return {name: str(_preset_values(name)["about"]) for name in preset_names()}


def _preset_values(name: str) -> dict[str, Any]:
    text = (resources.files("adagp.training") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def load_recipe(path: Path) -> Preset:
    """A recipe file, TOML or (as run folders hold it) JSON.

    Raises:
        RecipeError: When the file cannot be read or does not hold a recipe.
    """
    try:
        text = read_text(path)
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except OSError as error:
        raise RecipeError(f"recipe file '{path}' cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RecipeError(
            f"recipe file '{path}' is not valid: {error}; it must be TOML, or JSON named .json"
        ) from error
    if not isinstance(values, dict):
        raise RecipeError(f"recipe file '{path}' holds no table of fields")
    return _parse(path.stem, values)


def _parse(name: str, values: dict[str, Any]) -> Preset:
    values = dict(values)
    about = str(values.pop("about", ""))
    compare = values.pop("compare", {})
    if not isinstance(compare, dict) or set(compare) - {"methods", "seeds"}:
        raise RecipeError(f"recipe '{name}': [compare] may hold only 'methods' and 'seeds'")
    chosen, seeds = compare.get("methods", list(DEFAULT_METHODS)), compare.get("seeds", list(DEFAULT_SEEDS))
    if not isinstance(chosen, list) or not all(isinstance(part, str) for part in chosen):
        raise RecipeError(f'recipe \'{name}\': [compare] methods must be a list of names, such as ["bp", "adagp"]')
    if not isinstance(seeds, list) or not all(type(part) is int for part in seeds):
        raise RecipeError(f"recipe '{name}': [compare] seeds must be a list of whole numbers, such as [0, 1]")
    return Preset(name=name, about=about, recipe=Recipe.from_mapping(values), methods=tuple(chosen), seeds=tuple(seeds))


def parse_assignment(text: str) -> tuple[str, Any]:
    """One `field=value` of the command line; the value is read as TOML where it is TOML, else as a bare string.

    Raises:
        RecipeError: When there is no `=` in it, or no recipe can hold such a value.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise RecipeError(f"'{text}' sets nothing: write field=value, for example lr=0.1")
    if value.lower() in ("none", "null"):
        return name, None
    try:
        table = parse_toml(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return name, value
    except ValueError as error:
        raise RecipeError(f"{name} cannot be set: {error}") from None
    return name, table["value"] if len(table) == 1 else value


def _with_sizes(values: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """The values with every `sizes.NAME` gathered in `sizes`, on top of those given before."""
    single = {name.removeprefix(_SIZE): value for name, value in values.items() if name.startswith(_SIZE)}
    others = {name: value for name, value in values.items() if not name.startswith(_SIZE)}
    if not single:
        return others
    together = others.get("sizes", sizes)
    if not isinstance(together, Mapping):
        first = next(iter(single))
        raise RecipeError(
            f"sizes = {together!r} holds no sizes, so sizes.{first} cannot be one of them: give one of both"
        )
    for name in single:
        if name in others.get("sizes", {}):
            raise RecipeError(f"sizes.{name} is given twice: by itself and in sizes; give one of both")
    return others | {"sizes": {**together, **single}}


def _as_declared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Whole numbers are welcome where a float is declared, so that `lr = 1` means 1.0 and digests agree."""
    types = {field.name: str(field.type) for field in dataclasses.fields(Recipe)}
    return {
        name: float(value) if "float" in types[name] and type(value) is int and _is_bearable(value) else value
        for name, value in values.items()
    }


def _type_problems(recipe: Recipe) -> list[str]:
    problems = []
    for field in dataclasses.fields(recipe):
        value, declared = getattr(recipe, field.name), field.type
        accepted: Any = (declared | int) if "float" in str(declared) else declared
        accepted = dict if field.name == "sizes" else accepted
        if type(value) is int and not _is_bearable(value):
            problems.append(f"{field.name} is too large: a number of {value.bit_length()} bits")
        elif (isinstance(value, bool) and declared is not bool) or not isinstance(value, accepted):
            wanted = getattr(declared, "__name__", str(declared))
            problems.append(f"{field.name} = {value!r} is a {type(value).__name__}: give a value of type {wanted}")
    return problems


def _is_bearable(value: int) -> bool:
    """Whether torch can be given it; a larger number may not even be printed."""
    return value.bit_length() < 64


def _name_problems(recipe: Recipe) -> list[str]:
    choices: list[tuple[str, Any, list[str]]] = [
        ("model", recipe.model, models.names()),
        ("data", recipe.data, data.names()),
        ("method", recipe.method, methods.names()),
        ("optimizer", recipe.optimizer, list(OPTIMIZERS)),
        ("lr_schedule", recipe.lr_schedule, list(LR_SCHEDULES)),
    ]
    if recipe.predictor is not None:
        from adagp import predictors

        choices.append(("predictor", recipe.predictor, predictors.names()))
    problems = [
        f"unknown {field} '{value}'{_did_you_mean(str(value), known)}: choose one of {', '.join(known)}"
        for field, value, known in choices
        if value not in known
    ]
    if recipe.model in models.names():
        problems += _form_problems(recipe)
        if recipe.data in data.names():
            problems += _pair_problems(recipe.model, recipe.data)
    for field, value in (("include", recipe.include), ("exclude", recipe.exclude)):
        if isinstance(value, str) and not _is_expression(value):
            problems.append(f"{field} = {value!r} is no regular expression: write for example 'layer[12]'")
    if recipe.method == "adagp-paper" and recipe.predictor not in (None, methods.get("adagp-paper").predictor):
        problems.append(f"predictor = {recipe.predictor} would make adagp-paper something else: take method adagp")
    return problems


def _is_expression(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _pair_problems(model: str, dataset: str) -> list[str]:
    """A model and data that have nothing to do with each other."""
    able, wanted = models.task(model), data.entry(dataset).task
    if able == wanted:
        return []
    fitting = [name for name in data.names() if data.entry(name).task == able]
    remedy = f"choose the model from {', '.join(models.names(wanted))}, or the data from {', '.join(fitting)}"
    return [f"model '{model}' is for {able}, but data '{dataset}' is for {wanted}: {remedy}"]


def _form_problems(recipe: Recipe) -> list[str]:
    forms = models.forms(recipe.model)
    if recipe.form is not None and recipe.form not in forms:
        return [f"form = '{recipe.form}' is none of {recipe.model}: choose one of {', '.join(forms)}"]
    if not isinstance(recipe.sizes, dict):
        return []  # its type is a problem already
    known = [name for name in models.sizes(recipe.model, recipe.form) if name not in _FROM_DATA]
    problems = []
    for name, value in recipe.sizes.items():
        if name not in known:
            choice = f"its sizes: {', '.join(known)}" if known else "it has none to choose"
            problems.append(f"sizes.{name} is no size of {recipe.model} that can be chosen; {choice}")
        elif type(value) is not int or value < 1:
            problems.append(f"sizes.{name} = {value!r} must be a whole number from 1")
    return problems


_MOST = 2**31 - 1
_COUNT = f"at least 1 and at most {_MOST}"


def _counts(value: float) -> bool:
    return 1 <= value <= _MOST


def _range_problems(recipe: Recipe) -> list[str]:
    rules: list[tuple[str, Any, str]] = [
        ("epochs", _counts, _COUNT),
        ("steps", _counts, _COUNT),
        ("batch_size", _counts, _COUNT),
        ("lr", lambda value: 0 < value < float("inf"), "a positive number"),
        ("momentum", lambda value: 0 <= value < 1, "from 0 to below 1"),
        ("lr_warmup", lambda value: 0 <= value < 1, "from 0 to below 1"),
        ("label_smoothing", lambda value: 0 <= value < 1, "from 0 to below 1"),
        ("weight_decay", lambda value: 0 <= value < float("inf"), "0 or more"),
        ("warmup_epochs", lambda value: 0 <= value <= _MOST, f"0 or more, and at most {_MOST}"),
        ("rung_epochs", lambda value: 0 < value <= _MOST, f"more than 0, and at most {_MOST}"),
        ("topk", _counts, _COUNT),
        ("topk_scale", lambda value: 0 < value < float("inf"), "a positive number"),
        ("seed", lambda value: 0 <= value < 2**63, "from 0 to 2**63 - 1"),
        ("train_limit", _counts, _COUNT),
        ("test_limit", _counts, _COUNT),
        ("image_size", _counts, _COUNT),
        ("vocabulary", lambda value: SMALLEST <= value <= LARGEST, f"from {SMALLEST} to {LARGEST}"),
        ("beam", _counts, _COUNT),
        ("threads", _counts, _COUNT),
    ]
    problems = []
    for name, holds, wanted in rules:
        value = getattr(recipe, name)
        known = isinstance(value, float) or (isinstance(value, int) and _is_bearable(value))
        if known and not holds(value):
            problems.append(f"{name} = {value} is out of range: it must be {wanted}")
    limit, size = recipe.train_limit, recipe.batch_size
    if isinstance(limit, int) and isinstance(size, int) and 1 <= limit < size:
        problems.append(
            f"train_limit = {recipe.train_limit} is smaller than batch_size = {recipe.batch_size}, so an epoch would "
            "hold no full batch: raise train_limit or lower batch_size"
        )
    if recipe.lr_schedule == "plateau" and recipe.lr_warmup:
        problems.append("lr_warmup has no meaning with lr_schedule = plateau: set it to 0, or take another schedule")
    return problems


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name[:64], known, 1)
    return f" (did you mean '{close[0]}'?)" if close else ""
