"""Greedy and beam search: translations by a trained Transformer, token by token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adagp.models.transformer import PAD, Transformer

LENGTH_POWER = 0.6
"""Exponent of the length penalty of Wu et al. (2016), equation 14: without it, search prefers short sentences."""


@torch.no_grad()
def greedy(model: Transformer, source: Tensor, *, begin: int, end: int, longest: int) -> list[list[int]]:
    """Translate each source (N, S) by taking the most probable next token until it is `end`.

    Args:
        model: In `eval` mode.
        source: Padded with `PAD`.
        begin: The first token of every translation.
        end: The token that ends it.
        longest: Maximum number of tokens in a translation, `end` included.

    Returns:
        The tokens of each translation, without `begin` and `end`.
    """
    found: list[list[int]] = [[] for _ in source]
    state, tokens = model.begin(source), source.new_full((len(source),), begin)
    rows = torch.arange(len(source), device=source.device)
    for _ in range(longest):
        logits, state = model.next(tokens, state)
        tokens = _possible(logits, begin).argmax(1)
        unfinished = tokens != end
        if not bool(unfinished.all()):
            state, tokens, rows = state.rows(unfinished.nonzero().squeeze(1)), tokens[unfinished], rows[unfinished]
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            found[row].append(token)
        if not len(rows):
            break
    return found


@torch.no_grad()
def beam(model: Transformer, source: Tensor, *, begin: int, end: int, longest: int, width: int) -> list[list[int]]:
    """Translate each source (N, S), keeping the `width` best prefixes of a translation instead of one.

    The score of a sequence is its log-probability over ((5 + tokens) / 6) ** LENGTH_POWER, `end` included. A finished
    sequence keeps its beam while it is among the best. A sequence that is not finished after `longest` tokens is
    returned as it is. Arguments and result are those of `greedy`.

    Raises:
        ValueError: if `width` is below one.
    """
    if width < 1:
        raise ValueError(f"width: must be at least 1, got {width}")
    found: list[list[int]] = [[] for _ in source]
    sources = list(range(len(source)))
    state = model.begin(source)
    tokens = source.new_full((len(source),), begin)
    # Per source and beam: tokens, log-probability, length, and whether `end` was reached. There is one beam at first.
    sequences = source.new_empty((len(source), 1, 0))
    total = torch.zeros(len(source), 1, device=source.device)
    lengths = torch.zeros(len(source), 1, device=source.device)
    finished = torch.zeros(len(source), 1, dtype=torch.bool, device=source.device)
    for _ in range(longest):
        logits, state = model.next(tokens, state)
        beams = sequences.shape[1]
        scores = _possible(logits, begin).log_softmax(1).unflatten(0, (-1, beams))
        # A finished sequence continues with padding alone, at no cost.
        scores = scores.masked_fill(finished.unsqueeze(2), float("-inf"))
        scores[..., PAD] = torch.where(finished, 0.0, float("-inf"))
        sums = total.unsqueeze(2) + scores
        counts = (lengths + ~finished).unsqueeze(2).expand_as(sums)
        ranked = (sums / _penalty(counts)).flatten(1)
        best = ranked.topk(min(width, ranked.shape[1]), dim=1).indices
        parent, token = best // scores.shape[2], best % scores.shape[2]
        prefixes = sequences.gather(1, parent.unsqueeze(2).expand(-1, -1, sequences.shape[2]))
        sequences = torch.cat((prefixes, token.unsqueeze(2)), 2)
        total, lengths = sums.flatten(1).gather(1, best), counts.flatten(1).gather(1, best)
        finished = finished.gather(1, parent) | (token == end)
        done = finished.all(1)
        _keep(found, sources, sequences, done, end)
        active = ~done
        sources = [index for index, is_active in zip(sources, active.tolist(), strict=True) if is_active]
        if not sources:
            return found
        first = torch.arange(len(active), device=source.device).unsqueeze(1) * beams
        state, tokens = state.rows((first + parent)[active].flatten()), token[active].flatten()
        sequences, total, lengths, finished = sequences[active], total[active], lengths[active], finished[active]
    _keep(found, sources, sequences, torch.ones(len(sources), dtype=torch.bool), end)
    return found


def _possible(logits: Tensor, begin: int) -> Tensor:
    """Logits with the tokens that cannot follow, `PAD` and `begin`, masked out."""
    logits = logits.clone()
    logits[:, [PAD, begin]] = float("-inf")
    return logits


def _penalty(lengths: Tensor) -> Tensor:
    return ((5 + lengths) / 6) ** LENGTH_POWER


def _keep(found: list[list[int]], sources: Sequence[int], sequences: Tensor, done: Tensor, end: int) -> None:
    """Store the best sequence, which is the first beam's, of each source that is done."""
    for source, sequence, is_done in zip(sources, sequences[:, 0].tolist(), done.tolist(), strict=True):
        if is_done:
            found[source] = [token for token in sequence if token not in (PAD, end)]
