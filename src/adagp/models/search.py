"""Translations of a trained Transformer, word by word: the likeliest next word, or the best of several sentences."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.models.transformer import PAD, Transformer

LENGTH_POWER = 0.6
"""Length penalty of Wu et al. (2016), equation 14: long sentences are improbable and should not lose for it."""


@torch.no_grad()
def greedy(model: Transformer, source: Tensor, *, begin: int, end: int, longest: int) -> list[list[int]]:
    """Translate each source (N, S) by taking the likeliest next word until it is `end`.

    Args:
        model: In `eval` mode.
        source: Padded with `PAD`.
        begin: The word every translation starts with.
        end: The word that ends it.
        longest: Words of a translation at most, `end` counted.

    Returns:
        The words of each translation, without `begin` and `end`.
    """
    found: list[list[int]] = [[] for _ in source]
    state, words = model.begin(source), source.new_full((len(source),), begin)
    rows = torch.arange(len(source), device=source.device)
    for _ in range(longest):
        logits, state = model.next(words, state)
        words = _possible(logits, begin).argmax(1)
        going = words != end
        if not bool(going.all()):
            state, words, rows = state.rows(going.nonzero().squeeze(1)), words[going], rows[going]
        for row, word in zip(rows.tolist(), words.tolist(), strict=True):
            found[row].append(word)
        if not len(rows):
            break
    return found


@torch.no_grad()
def beam(model: Transformer, source: Tensor, *, begin: int, end: int, longest: int, width: int) -> list[list[int]]:
    """Translate each source (N, S), keeping the `width` best beginnings of a translation instead of one.

    The score of a sentence is the logarithm of its probability over ((5 + words) / 6) ** LENGTH_POWER, `end` counted as
    a word. A sentence that has ended keeps its place as long as it is among the best; one that is not over after
    `longest` words stands as it is. Arguments and result as of `greedy`.

    Raises:
        ValueError: if `width` is below one.
    """
    if width < 1:
        raise ValueError(f"width: must be at least 1, got {width}")
    found: list[list[int]] = [[] for _ in source]
    sentences = list(range(len(source)))
    state = model.begin(source)
    words = source.new_full((len(source),), begin)
    # Per sentence and place in its beam: words so far, log-probability, and whether it is over. One place at first.
    texts = source.new_empty((len(source), 1, 0))
    total = torch.zeros(len(source), 1, device=source.device)
    lengths = torch.zeros(len(source), 1, device=source.device)
    over = torch.zeros(len(source), 1, dtype=torch.bool, device=source.device)
    for _ in range(longest):
        logits, state = model.next(words, state)
        places = texts.shape[1]
        scores = _possible(logits, begin).log_softmax(1).unflatten(0, (-1, places))
        # What is over goes on with padding, at no cost, and with nothing else.
        scores = scores.masked_fill(over.unsqueeze(2), float("-inf"))
        scores[..., PAD] = torch.where(over, 0.0, float("-inf"))
        sums = total.unsqueeze(2) + scores
        counts = (lengths + ~over).unsqueeze(2).expand_as(sums)
        ranked = (sums / _penalty(counts)).flatten(1)
        best = ranked.topk(min(width, ranked.shape[1]), dim=1).indices
        place, word = best // scores.shape[2], best % scores.shape[2]
        texts = torch.cat((texts.gather(1, place.unsqueeze(2).expand(-1, -1, texts.shape[2])), word.unsqueeze(2)), 2)
        total, lengths = sums.flatten(1).gather(1, best), counts.flatten(1).gather(1, best)
        over = over.gather(1, place) | (word == end)
        finished = over.all(1)
        _keep(found, sentences, texts, finished, end)
        going = ~finished
        sentences = [sentence for sentence, goes in zip(sentences, going.tolist(), strict=True) if goes]
        if not sentences:
            return found
        first = torch.arange(len(going), device=source.device).unsqueeze(1) * places
        state, words = state.rows((first + place)[going].flatten()), word[going].flatten()
        texts, total, lengths, over = texts[going], total[going], lengths[going], over[going]
    _keep(found, sentences, texts, torch.ones(len(sentences), dtype=torch.bool), end)
    return found


def _possible(logits: Tensor, begin: int) -> Tensor:
    """Logits without the words that no translation goes on with."""
    logits = logits.clone()
    logits[:, [PAD, begin]] = float("-inf")
    return logits


def _penalty(words: Tensor) -> Tensor:
    return ((5 + words) / 6) ** LENGTH_POWER


def _keep(found: list[list[int]], sentences: Sequence[int], texts: Tensor, chosen: Tensor, end: int) -> None:
    """Write down the best text, which is the first, of each sentence chosen."""
    for sentence, text, wanted in zip(sentences, texts[:, 0].tolist(), chosen.tolist(), strict=True):
        if wanted:
            found[sentence] = [word for word in text if word not in (PAD, end)]
