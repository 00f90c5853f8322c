"""Translation of sentences, judged by BLEU."""

from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp import models
from adagp.data import PairBatches, Translation, Vocabulary
from adagp.data.order import ScaleOf, full_size
from adagp.data.vocabulary import BEGIN, END, PAD
from adagp.extras import require
from adagp.models.search import beam, greedy
from adagp.models.transformer import LONGEST, Transformer
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe
from adagp.training.tasks.keeping import keep_vocabulary
from adagp.training.tasks.task import Evaluation, Metric, check_batch_size
from adagp.training.tasks.tokens import token_losses, token_scores

_EVALUATION_BATCH = 100

Batch = tuple[Tensor, Tensor]


class TextTranslation:
    """Cross-entropy of the next token in training; BLEU, token accuracy and loss in evaluation.

    BLEU is sacrebleu's, on the raw text. Every evaluation translates greedily; the last one also reports the BLEU of
    beam search, as `beam_bleu`.
    """

    metrics: tuple[Metric, ...] = (
        Metric("bleu", "BLEU", "BLEU", 1.0),
        Metric("token_accuracy", "token accuracy"),
        Metric("beam_bleu", "BLEU by beam search", "BLEU", 1.0),
    )
    items = "sentence pairs"

    def __init__(self, recipe: Recipe, dataset: Translation) -> None:
        """Learn both vocabularies from the training text and encode it.

        Raises:
            RecipeError: When the data does not fill a batch, or a test sentence is too long for the network.
        """
        check_batch_size(recipe, len(dataset.train), self.items, dataset.name)
        require("sacrebleu")  # for the score after the first epoch
        self._recipe = recipe
        text = dataset.train[: recipe.train_limit]
        self._source, self._target = _vocabularies(text, recipe.vocabulary)
        batches = partial(PairBatches, source=self._source, target=self._target, seed=recipe.seed)
        try:
            self._train = batches(text, batch_size=recipe.batch_size, train=True)
        except ValueError as error:
            raise RecipeError(f"the training text of '{dataset.name}' cannot be used: {error}") from error
        test = dataset.test[: recipe.test_limit]
        self._test = batches(test, batch_size=_EVALUATION_BATCH, train=False)
        self._references = [target for _, target in test]
        if (tokens := max(part.shape[1] for batch in self._test.epoch(0) for part in batch)) > LONGEST:
            raise RecipeError(
                f"a test sentence of '{dataset.name}' has {tokens} tokens, but {recipe.model} takes {LONGEST} at most: "
                "raise vocabulary, or cut the sentence"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""
        return len(self._train)

    @property
    def test_items(self) -> int:
        """Test sentences."""
        return len(self._references)

    def build_model(self) -> nn.Module:
        """The network for both vocabularies."""
        return models.build(
            self._recipe.model,
            self._recipe.network_form,
            source_vocabulary=len(self._source),
            target_vocabulary=len(self._target),
            **self._recipe.sizes,
        )

    def epoch(self, epoch: int, start: int, scale_of: ScaleOf = full_size) -> Iterator[Batch]:
        """Token numbers of sources and targets; `check_scales` lets no other scale than 1 through."""
        return self._train.epoch(epoch, start)

    @property
    def train_items(self) -> int:
        """Training pairs."""
        return self._train.count

    def members(self, epoch: int, index: int) -> Tensor:
        """Indices of the pairs in a batch."""
        return self._train.members(epoch, index)

    def take(self, batch: Batch, places: Tensor) -> Batch:
        """Some pairs."""
        return batch[0][places], batch[1][places]

    def sample_losses(self, model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
        """Mean cross-entropy of the tokens of every translation."""
        logits, wanted = _next_tokens(model, batch, device)
        return token_losses(logits, wanted, len(batch[0]), self._recipe.label_smoothing)

    def share(self, batch: Batch, rank: int, count: int) -> Batch:
        """Every `count`-th pair."""
        return batch[0][rank::count], batch[1][rank::count]

    def check_scales(self, model: nn.Module, scales: Collection[float]) -> None:
        """Sentences have no size to reduce."""
        if any(scale < 1 for scale in scales):
            raise ValueError("coarse batches are for images: sentences cannot be made smaller")

    def loss(self, model: nn.Module, batch: Batch, device: torch.device, scale: float = 1.0) -> Tensor:
        """Mean cross-entropy of each next token, given those before it."""
        logits, wanted = _next_tokens(model, batch, device)
        return functional.cross_entropy(logits, wanted, ignore_index=PAD, label_smoothing=self._recipe.label_smoothing)

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Loss and accuracy of the next token given the true ones before it, and BLEU of whole translations."""
        scores = token_scores(_next_tokens(model, batch, device) for batch in self._test.epoch(0))
        metrics = {"bleu": self._bleu(model, device, greedy), "token_accuracy": scores.accuracy}
        if last and self._recipe.beam > 1:
            metrics["beam_bleu"] = self._bleu(model, device, partial(beam, width=self._recipe.beam))
        return Evaluation(scores.loss, metrics)

    def keep(self, folder: Path) -> None:
        """Keep both vocabularies: the weights are useless without them."""
        for vocabulary, name in ((self._source, "vocabulary-source.json"), (self._target, "vocabulary-target.json")):
            keep_vocabulary(vocabulary, folder / name)

    def _bleu(self, model: nn.Module, device: torch.device, search: Callable[..., list[list[int]]]) -> float:
        import sacrebleu  # here, because it takes a second that other tasks need not wait

        texts: list[str] = []
        for source, _ in self._test.epoch(0):
            # Beyond twice the tokens of the source, the network repeats itself.
            longest = min(2 * source.shape[1] + 10, LONGEST)
            found = search(cast(Transformer, model), source.to(device), begin=BEGIN, end=END, longest=longest)
            texts += [self._target.decode(numbers) for numbers in found]
        return float(sacrebleu.corpus_bleu(texts, [self._references]).score)


@lru_cache(maxsize=2)
def _vocabularies(text: tuple[tuple[str, str], ...], size: int) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of both languages, learned once for all runs of a comparison."""
    sources, targets = zip(*text, strict=True)
    return Vocabulary.build(sources, size), Vocabulary.build(targets, size)


def _next_tokens(model: nn.Module, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits (tokens, vocabulary) of each next target token, and the true tokens (tokens,)."""
    source, target = batch[0].to(device), batch[1].to(device)
    return model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()
