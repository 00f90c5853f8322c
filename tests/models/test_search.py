"""Search, against the network's own full decoding and against trying every sentence there is."""

import itertools

import pytest
import torch
from torch import Tensor

from adagp.models.search import LENGTH_POWER, beam, greedy
from adagp.models.transformer import PAD, Transformer

BEGIN, END = 1, 2


@pytest.fixture
def model() -> Transformer:
    """Of two dozen words, with an output that is sure enough of itself for the sentences to differ."""
    torch.manual_seed(1)
    built = Transformer(source_vocabulary=20, target_vocabulary=24, layers=2, width=16, heads=2, hidden=16).eval()
    with torch.no_grad():
        built.output.weight.mul_(4)
        built.output.bias[END] = 8
    return built


@pytest.fixture
def source() -> Tensor:
    return torch.tensor([[5, 6, 7, 2], [8, 2, PAD, PAD], [9, 10, 2, PAD], [11, 12, 13, 2], [4, 4, 4, 2]])


def test_word_by_word_gives_the_logits_of_whole_sentences(model: Transformer, source: Tensor) -> None:
    target = torch.randint(3, 24, (5, 6), generator=torch.Generator().manual_seed(0))
    whole = model(source, target)
    state = model.begin(source)
    for place in range(6):
        logits, state = model.next(target[:, place], state)
        torch.testing.assert_close(logits, whole[:, place])
    assert state.length == 6


def test_rows_go_on_as_those_chosen(model: Transformer, source: Tensor) -> None:
    first, second = torch.tensor([3, 4, 5, 6, 7]), torch.tensor([8, 9, 10])
    chosen = torch.tensor([4, 1, 1])
    _, state = model.next(first, model.begin(source))
    logits, _ = model.next(second, state.rows(chosen))
    whole = model(source[chosen], torch.stack((first[chosen], second), 1))
    torch.testing.assert_close(logits, whole[:, -1])


def plain_greedy(model: Transformer, source: Tensor, longest: int) -> list[list[int]]:
    """One sentence at a time, everything computed anew for each word."""
    found = []
    for sentence in source:
        words = [BEGIN]
        for _ in range(longest):
            logits = model(sentence[None], torch.tensor([words]))[0, -1]
            logits[[PAD, BEGIN]] = float("-inf")
            words.append(int(logits.argmax()))
            if words[-1] == END:
                break
        found.append([word for word in words[1:] if word != END])
    return found


@torch.no_grad()
@pytest.mark.parametrize("longest", [1, 3, 12])
def test_greedy_is_the_plain_one(model: Transformer, source: Tensor, longest: int) -> None:
    expected = plain_greedy(model, source, longest)
    assert greedy(model, source, begin=BEGIN, end=END, longest=longest) == expected
    assert longest < 12 or len({len(sentence) for sentence in expected}) > 1, "sentences that end at different times"


def test_a_beam_of_one_is_greedy(model: Transformer, source: Tensor) -> None:
    wanted = greedy(model, source, begin=BEGIN, end=END, longest=9)
    assert beam(model, source, begin=BEGIN, end=END, longest=9, width=1) == wanted


def score(model: Transformer, sentence: Tensor, words: list[int]) -> float:
    """Log-probability over the length's penalty, from the definition."""
    logits = model(sentence[None], torch.tensor([[BEGIN, *words[:-1]]]))[0].clone()
    logits[:, [PAD, BEGIN]] = float("-inf")
    chosen = logits.log_softmax(1)[torch.arange(len(words)), torch.tensor(words)]
    return float(chosen.sum()) / ((5 + len(words)) / 6) ** LENGTH_POWER


@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_sentences(source: Tensor) -> None:
    torch.manual_seed(5)
    model = Transformer(source_vocabulary=20, target_vocabulary=6, layers=1, width=8, heads=2, hidden=8).eval()
    model.output.weight.mul_(3)
    words = (3, 4, 5)
    longest = 4
    every = [
        [*begun, last]
        for length in range(longest)
        for begun in itertools.product(words, repeat=length)
        for last in ((END,) if length < longest - 1 else (END, *words))
    ]
    found = beam(model, source, begin=BEGIN, end=END, longest=longest, width=4**longest)
    for sentence, got in zip(source, found, strict=True):
        best = max(every, key=lambda text: score(model, sentence, text))
        assert got == [word for word in best if word != END]


@torch.no_grad()
def test_a_wider_beam_seldom_finds_worse(model: Transformer, source: Tensor) -> None:
    """Here never: the sentences' scores, ended and cut ones alike."""

    def scored(found: list[list[int]]) -> list[float]:
        texts = [[*text, END] if len(text) < 9 else text for text in found]
        return [score(model, sentence, text) for sentence, text in zip(source, texts, strict=True)]

    narrow = scored(beam(model, source, begin=BEGIN, end=END, longest=9, width=1))
    wide = scored(beam(model, source, begin=BEGIN, end=END, longest=9, width=5))
    assert all(two >= one - 1e-6 for one, two in zip(narrow, wide, strict=True))
    assert sum(wide) > sum(narrow) + 1e-3


def test_no_beam(model: Transformer, source: Tensor) -> None:
    with pytest.raises(ValueError, match="width: must be at least 1, got 0"):
        beam(model, source, begin=BEGIN, end=END, longest=3, width=0)
