"""Next-token prediction on running text, judged by perplexity."""

import math
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp import coarse, models
from adagp.data import Text, TokenBatches, Vocabulary
from adagp.data.order import ScaleOf, full_size
from adagp.data.vocabulary import PAD
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe
from adagp.training.tasks.keeping import keep_vocabulary
from adagp.training.tasks.task import Evaluation, Metric, check_batch_size
from adagp.training.tasks.tokens import token_losses, token_scores

_EVALUATION_TOKENS = 8192
WORST_PERPLEXITY = 1e6
"""What a larger perplexity, or that of a run whose loss is not a number, is reported as."""


class NextToken:
    """Cross-entropy of the next token in training; perplexity, bits per byte and token accuracy in evaluation.

    Perplexity is the exponential of the mean cross-entropy of the test tokens, each given those before it in its
    sequence. It depends on the vocabulary; bits per byte do not. A coarse batch has shorter contexts.
    """

    metrics: tuple[Metric, ...] = (
        Metric("perplexity", "perplexity", "perplexity", 1.0, lower_is_better=True),
        Metric("bits_per_byte", "bits per byte", "bits per byte", 1.0, lower_is_better=True),
        Metric("token_accuracy", "token accuracy"),
    )
    items = "sequences"

    def __init__(self, recipe: Recipe, dataset: Text) -> None:
        """Learn the vocabulary from the training text and encode all of it.

        Raises:
            RecipeError: When the text does not fill a sequence or a batch.
        """
        self._recipe = recipe
        self._context = _context(recipe)
        self._vocabulary, train, test = _encoded(dataset, recipe.vocabulary)
        for part, tokens, least in (("training", train, self._context + 1), ("test", test, 2)):
            if len(tokens) < least:
                raise RecipeError(
                    f"the {part} text of '{dataset.name}' has {len(tokens)} tokens, and a sequence takes {least} "
                    f"(sizes.context = {self._context}): lower sizes.context, or give more text"
                )
        self._train = TokenBatches(
            train, self._context, recipe.batch_size, seed=recipe.seed, train=True, limit=recipe.train_limit
        )
        check_batch_size(recipe, (len(train) - 1) // self._context, self.items, dataset.name)
        size = max(1, _EVALUATION_TOKENS // self._context)
        self._test = TokenBatches(test, self._context, size, seed=recipe.seed, train=False, limit=recipe.test_limit)
        kept = test[: 1 + self._test.examples_per_epoch * self._context]
        self._test_bytes = len(self._vocabulary.decode_bytes(kept[1:]))

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""
        return len(self._train)

    @property
    def test_items(self) -> int:
        """Test sequences."""
        return self._test.examples_per_epoch

    def build_model(self) -> nn.Module:
        """The network for the vocabulary."""
        recipe = self._recipe
        return models.build(recipe.model, recipe.network_form, vocabulary=len(self._vocabulary), **recipe.sizes)

    def epoch(self, epoch: int, start: int, scale_of: ScaleOf = full_size) -> Iterator[Tensor]:
        """Sequences of tokens, shorter in coarse batches."""
        return self._train.epoch(epoch, start, scale_of)

    @property
    def train_items(self) -> int:
        """Training sequences."""
        return self._train.count

    def members(self, epoch: int, index: int) -> Tensor:
        """Indices of the sequences in a batch."""
        return self._train.members(epoch, index)

    def take(self, batch: Tensor, places: Tensor) -> Tensor:
        """Some sequences."""
        return batch[places]

    def sample_losses(self, model: nn.Module, batch: Tensor, device: torch.device) -> Tensor:
        """Mean cross-entropy of the tokens of every sequence."""
        logits, wanted = _next_tokens(model, batch, device)
        return token_losses(logits, wanted, len(batch), self._recipe.label_smoothing)

    def share(self, batch: Tensor, rank: int, count: int) -> Tensor:
        """Every `count`-th sequence."""
        return batch[rank::count]

    def check_scales(self, model: nn.Module, scales: Collection[float]) -> None:
        """Run the model with each context, without computing anything."""
        if any(scale < 1 for scale in scales):
            coarse.check(model, torch.ones(1, self._context, dtype=torch.long), scales, coarse.tokens)

    def loss(self, model: nn.Module, batch: Tensor, device: torch.device, scale: float = 1.0) -> Tensor:
        """Mean cross-entropy of each next token, given those before it."""
        logits, wanted = _next_tokens(model, batch, device, scale)
        return self._cross_entropy(logits, wanted)

    def target(self, batch: Tensor, device: torch.device) -> Tensor:
        """Each next token."""
        return batch[:, 1:].to(device)

    def head_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of each next token."""
        return self._cross_entropy(output.flatten(0, 1), target.flatten())

    def _cross_entropy(self, logits: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(logits, wanted, ignore_index=PAD, label_smoothing=self._recipe.label_smoothing)

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Loss, perplexity, bits per byte and accuracy of the next token over the test text."""
        scores = token_scores(_next_tokens(model, batch, device) for batch in self._test.epoch(0))
        worst = math.log(WORST_PERPLEXITY)
        judged = scores.loss if scores.loss < worst else worst  # also where the loss is not a number
        metrics = {
            "perplexity": math.exp(judged),
            "bits_per_byte": judged * scores.tokens / (math.log(2) * self._test_bytes),
            "token_accuracy": scores.accuracy,
        }
        return Evaluation(scores.loss, metrics)

    def keep(self, folder: Path) -> None:
        """Keep the vocabulary: the weights are useless without it."""
        keep_vocabulary(self._vocabulary, folder / "vocabulary.json")


def _context(recipe: Recipe) -> int:
    sizes = models.sizes(recipe.model, recipe.network_form) | recipe.sizes
    if "context" not in sizes:
        raise RecipeError(f"model {recipe.model} has no size `context`: register it with one, such as context=128")
    return sizes["context"]


@lru_cache(maxsize=2)
def _encoded(dataset: Text, size: int) -> tuple[Vocabulary, list[int], list[int]]:
    """The vocabulary of a text, and its splits as tokens, computed once for all runs of a comparison."""
    vocabulary = Vocabulary.build([dataset.train], size)
    return vocabulary, vocabulary.encode(dataset.train), vocabulary.encode(dataset.test)


def _next_tokens(model: nn.Module, batch: Tensor, device: torch.device, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits (tokens, vocabulary) of each next token, and the true tokens (tokens,)."""
    batch = batch.to(device)
    seen, wanted = coarse.tokens(batch[:, :-1], scale), coarse.tokens(batch[:, 1:], scale)
    return model(seen).flatten(0, 1), wanted.flatten()
