"""A recipe: everything that decides the outcome of one training run, as plain values.

This module imports no torch, so that help texts are quick. Checking a recipe may, as the networks need it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from adagp import data, models
from adagp.data.vocabulary import LARGEST, SMALLEST
from adagp.defaults import SAMPLED_RATE
from adagp.schedules import progressive
from adagp.training import methods
from adagp.training.errors import RecipeError
from adagp.training.fields import Expression, OneOf, Range, as_declared, did_you_mean, field_problems

OPTIMIZERS = ("sgd", "adam", "adamw")
HEADS = ("dgl", "predsim")
LR_SCHEDULES = ("constant", "cosine", "step", "exponential", "plateau")
# Sizes of a network that the data decides.
_FROM_DATA = ("num_classes", "in_channels", "source_vocabulary", "target_vocabulary", "vocabulary")
_SIZE = "sizes."

# The paper's ladder in epochs: warm-up, then 4 epochs each of 4:1, 3:1 and 2:1; 1:1 takes the rest.
PAPER_WARMUP_EPOCHS = 10.0
PAPER_RUNG_EPOCHS = 4.0
# Shorter runs keep the proportions 10:4:4:4:4, so that every rung still happens.
FULL_LADDER_EPOCHS = PAPER_WARMUP_EPOCHS + 4 * PAPER_RUNG_EPOCHS


def _predictor_names() -> list[str]:
    from adagp import predictors  # brings torch

    return predictors.names()


_MOST = 2**31 - 1
_Count = Annotated[int, Range(least=1, most=_MOST)]
_Positive = Annotated[float, Range(above=0)]
_Fraction = Annotated[float, Range(least=0, below=1)]
_Pattern = Annotated[str, Expression()]
# Looked up late: the list of models imports torch.
_Model = Annotated[str, OneOf(lambda: models.names())]
_Data = Annotated[str, OneOf(lambda: data.names())]
_Predictor = Annotated[str, OneOf(_predictor_names)]


def parse_levels(text: str) -> tuple[tuple[float, float], ...]:
    """Scales and shares from text such as `0.5:0.6,1:0.4`.

    Raises:
        ValueError: When it is no such text, or no schedule.
    """
    try:
        pairs = tuple(tuple(map(float, pair.split(":"))) for pair in text.split(","))
        levels = tuple((scale, share) for scale, share in pairs)
    except ValueError:
        raise ValueError(f"levels = {text!r}: write scale:share pairs, such as 0.5:0.6,1:0.4") from None
    try:
        progressive(100, levels)
    except ValueError as error:
        raise ValueError(f"levels = {text!r}: {str(error).removeprefix('levels: ')}") from None
    return levels


class Levels:
    """Scales of a progressive run and their shares."""

    def problem(self, name: str, value: Any) -> str | None:
        """See `Rule`."""
        try:
            parse_levels(value)
        except ValueError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class LadderSteps:
    """The length of ADA-GP's warm-up and of each rung, in batches.

    Batches rather than epochs, because in a short run a rung ends inside an epoch.
    """

    warmup_steps: int
    rung_steps: int


@dataclass(frozen=True)
class Recipe:
    """One training run. Every field can be set in a TOML or JSON file and on the command line.

    Attributes:
        model: A name from `adagp.models.names()`.
        form: A name from `adagp.models.forms(model)`. None: `imagenet` for data of large images, else the first.
        sizes: Sizes from `adagp.models.sizes(model, form)` that differ from their defaults, such as `width`.
        data: A name from `adagp.data.names()`; its task must be the model's.
        method: A name from `adagp.training.methods.names()`.
        epochs: Passes over the training items.
        steps: Batches in the whole run; None means `epochs` whole epochs. Learning rate and ladder are fitted to it.
        batch_size: Images, sentence pairs or token sequences in a batch.
        lr: Learning rate at the start.
        optimizer: `sgd`, `adam` or `adamw`.
        momentum: The momentum of `sgd`; the other optimizers ignore it.
        weight_decay: As the optimizer defines it.
        lr_schedule: `constant`; `cosine` to zero; `step`: a tenth after half and again after three quarters of the run;
            `exponential`: smoothly to a hundredth; `plateau`: PyTorch's ReduceLROnPlateau with its default parameters,
            on the test loss after each epoch. (No items are held out for validation, so with `plateau` the test loss
            influences the training.)
        lr_warmup: Fraction of the run in which the learning rate rises from zero, before `lr_schedule` begins.
        label_smoothing: The probability that the training loss spreads evenly over all classes.
        warmup_epochs: Epochs before the first predicted batch. None: the paper's 10, shortened in proportion for
            runs under 26 epochs.
        rung_epochs: Epochs of each of 4:1, 3:1 and 2:1. None: the paper's 4, shortened likewise.
        schedule: For the methods `zero`, `random` and `topk` a name from `schedules.APPROXIMATIONS` (None: `1`); for
            `table` the table itself, as text.
        levels: For `progressive`, scales of the images or contexts and their shares of the run, such as
            `0.5:0.6,1:0.4`. For `growing` the scales count.
        scale: The fraction of their size that images or contexts have in the cheap batches of `coarse`, and in all of
            `small-size`.
        rate: The share of positions that `sampled` draws.
        keep: What `sampled` keeps of a layer's input until the backward: `input`, or the `rows` that it draws in the
            forward.
        topk: Entries of `grad_output` that `topk` keeps per sample and channel.
        topk_scale: Factor that `topk` gradients are multiplied by.
        parts: For `local`, the number of parts of the network.
        cuts: For `local`, the modules that end a part, such as `stages.0,stages.1`; None: parts of equal memory.
        head: For `local`, the kind of the heads: `dgl` or `predsim`.
        until: The last layer, or module, of the prefix of `prefix` and `prefix-zero`; None: half of the layers.
        predictor: A name from `adagp.predictors.names()` for `adagp`, `adaptive`, `prefix`; None: the method's own.
        include: Regular expression: only layers whose name or class matches are covered.
        exclude: Regular expression: layers whose name or class matches are left to backpropagation.
        immediate: Update each layer as soon as its output exists, as the paper's hardware does.
        seed: Decides initial weights, order and augmentation of the items.
        train_limit: The number of training items to use; None: all.
        test_limit: The number of test items to use; None: all.
        image_size: Width and height that images in files are resized to. None: those that the form is made for.
        augment: Augment the training images where the data set has an augmentation.
        vocabulary: Tokens in the vocabulary of each language, which is learned from the training text; 259 are bytes.
        beam: Width of the beam search of translations after the last epoch; 1: no beam search.
        channels_last: Keep images and convolution weights in channels-last order, which is faster on most machines.
            Text has no such order.
        threads: CPU threads; None: PyTorch's own choice.
        weights: The file `model.pt` of another run, whose weights this one starts from where their shapes agree; None:
            random weights.
    """

    model: _Model = "cnn"
    form: str | None = None
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    data: _Data = "mnist5k"
    method: Annotated[str, OneOf(methods.names)] = "adagp"
    epochs: _Count = 6
    steps: _Count | None = None
    batch_size: _Count = 64
    lr: _Positive = 0.05
    optimizer: Annotated[str, OneOf(lambda: OPTIMIZERS)] = "sgd"
    momentum: _Fraction = 0.9
    weight_decay: Annotated[float, Range(least=0)] = 5e-4
    lr_schedule: Annotated[str, OneOf(lambda: LR_SCHEDULES)] = "cosine"
    lr_warmup: _Fraction = 0.0
    label_smoothing: _Fraction = 0.0
    warmup_epochs: Annotated[float, Range(least=0, most=_MOST)] | None = None
    rung_epochs: Annotated[float, Range(above=0, most=_MOST)] | None = None
    schedule: str | None = None
    levels: Annotated[str, Levels()] = "0.5:0.6,1:0.4"
    scale: Annotated[float, Range(above=0, most=1)] = 0.5
    rate: Annotated[float, Range(above=0, most=1)] = SAMPLED_RATE
    keep: Annotated[str, OneOf(lambda: ("input", "rows"))] = "input"
    topk: _Count = 1
    topk_scale: _Positive = 1.0
    parts: _Count = 2
    cuts: str | None = None
    head: Annotated[str, OneOf(lambda: HEADS)] = "dgl"
    until: str | None = None
    predictor: _Predictor | None = None
    include: _Pattern | None = None
    exclude: _Pattern | None = None
    immediate: bool = False
    seed: Annotated[int, Range(least=0, most=2**63 - 1)] = 0
    train_limit: _Count | None = None
    test_limit: _Count | None = None
    image_size: _Count | None = None
    augment: bool = True
    vocabulary: Annotated[int, Range(least=SMALLEST, most=LARGEST)] = 4000
    beam: _Count = 4
    channels_last: bool = True
    threads: _Count | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        """Report all unusable values together, before anything is loaded or trained."""
        problems = field_problems(self) or _combination_problems(self)
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
    def cut_names(self) -> tuple[str, ...] | None:
        """The modules that end a part; None where a rule finds them."""
        return None if self.cuts is None else tuple(name.strip() for name in self.cuts.split(","))

    @property
    def network_pixels(self) -> int:
        """Width and height of the images that this form is made for."""
        import torch

        with torch.device("meta"):
            return models.example_inputs(self.model, self.network_form)[0].shape[-1]

    def replace(self, **changes: Any) -> Self:
        """The same recipe with some values changed; it is checked again."""
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
                    f"unknown recipe field '{name}'{did_you_mean(name, known)}: choose from {', '.join(known)}"
                )
        return dataclasses.replace(start, **as_declared(cls, values))

    def digest(self) -> str:
        """A short fingerprint: a checkpoint made with one recipe is refused by another."""
        values = self.to_dict()
        if self.weights is None:  # the field is younger than many checkpoints
            del values["weights"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def differences(self, other: Self) -> list[str]:
        """The fields that differ, as readable text."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{name} {mine[name]!r} against {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]

    def ladder(self, total_steps: int, steps_per_epoch: int) -> LadderSteps:
        """Fit the paper's ladder to a run of `total_steps` batches.

        Explicit `warmup_epochs` and `rung_epochs` are used as they are. Otherwise runs of 26 epochs or more have the
        paper's 10 and 4 epochs, and shorter runs shrink both in proportion.
        """
        epochs = total_steps / steps_per_epoch
        scale = min(1.0, epochs / FULL_LADDER_EPOCHS)
        warmup = PAPER_WARMUP_EPOCHS * scale if self.warmup_epochs is None else self.warmup_epochs
        rung = PAPER_RUNG_EPOCHS * scale if self.rung_epochs is None else self.rung_epochs
        return LadderSteps(round(warmup * steps_per_epoch), max(1, round(rung * steps_per_epoch)))


def _with_sizes(values: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """The values with every `sizes.NAME` collected in `sizes`, on top of the sizes given before."""
    single = {name.removeprefix(_SIZE): value for name, value in values.items() if name.startswith(_SIZE)}
    others = {name: value for name, value in values.items() if not name.startswith(_SIZE)}
    if not single:
        return others
    together = others.get("sizes", sizes)
    if not isinstance(together, Mapping):
        first = next(iter(single))
        raise RecipeError(f"sizes = {together!r} contradicts sizes.{first}: give one of the two")
    for name in single:
        if name in others.get("sizes", {}):
            raise RecipeError(f"sizes.{name} is given twice, by itself and in sizes: give it once")
    return others | {"sizes": {**together, **single}}


def _combination_problems(recipe: Recipe) -> list[str]:
    """Values that are usable by themselves but not together, in words."""
    problems = [*_form_problems(recipe), *_task_problems(recipe.model, recipe.data)]
    if recipe.method == "adagp-paper" and recipe.predictor not in (None, methods.get("adagp-paper").predictor):
        problems.append(f"predictor = {recipe.predictor} contradicts method adagp-paper: take method adagp")
    if recipe.train_limit is not None and recipe.train_limit < recipe.batch_size:
        problems.append(
            f"train_limit = {recipe.train_limit} is smaller than batch_size = {recipe.batch_size}, so an epoch would "
            "hold no full batch: raise train_limit or lower batch_size"
        )
    shrinks = methods.get(recipe.method).is_coarse or recipe.method == "small-size"
    if shrinks and models.task(recipe.model) == "translation":
        problems.append(
            f"method {recipe.method} makes images smaller, and {recipe.model} takes none: choose another method"
        )
    if methods.get(recipe.method).planning is methods.Planning.LOCAL:
        if models.task(recipe.model) not in ("classification", "next-token"):
            problems.append(
                f"method {recipe.method} is for classification and next-token prediction, and {recipe.model} is for "
                f"{models.task(recipe.model)}: choose another method, or use sources.Local in a loop of your own"
            )
        if recipe.cuts is not None and recipe.parts != Recipe.parts:
            problems.append(f"parts = {recipe.parts} contradicts cuts = {recipe.cuts}: give one of the two")
    if recipe.lr_schedule == "plateau" and recipe.lr_warmup:
        problems.append("lr_warmup has no effect with lr_schedule = plateau: set it to 0, or take another schedule")
    return problems


def _task_problems(model: str, dataset: str) -> list[str]:
    mine, wanted = models.task(model), data.entry(dataset).task
    if mine == wanted:
        return []
    fitting = [name for name in data.names() if data.entry(name).task == mine]
    remedy = f"choose the model from {', '.join(models.names(wanted))}, or the data from {', '.join(fitting)}"
    return [f"model '{model}' is for {mine}, but data '{dataset}' is for {wanted}: {remedy}"]


def _form_problems(recipe: Recipe) -> list[str]:
    forms = models.forms(recipe.model)
    if recipe.form is not None and recipe.form not in forms:
        return [f"form = '{recipe.form}' is not a form of {recipe.model}: choose one of {', '.join(forms)}"]
    known = [name for name in models.sizes(recipe.model, recipe.form) if name not in _FROM_DATA]
    problems = []
    for name, value in recipe.sizes.items():
        if name not in known:
            choice = f"choose from {', '.join(known)}" if known else "it has none"
            problems.append(f"sizes.{name} is not a size of {recipe.model} that can be set: {choice}")
        elif type(value) is not int or value < 1:
            problems.append(f"sizes.{name} = {value!r} must be a whole number from 1")
    return problems
