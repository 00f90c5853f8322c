"""A Transformer that translates, after Vaswani et al. (2017), with explicit linear layers for queries, keys and values.

`nn.MultiheadAttention` uses its weights without calling a layer, so that no output of theirs can be seen; here every
weight is that of an `nn.Linear`.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp.models.registry import register

PAD = 0
"""The number that fills up short sentences; it is never attended to."""
LONGEST = 512
"""Words of the longest sentence, where nothing else is said."""
KeysAndValues = tuple[Tensor, Tensor]


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """The paper's positions, (length, width): sines in the even places, cosines of the same angles in the odd ones."""
    with torch.device("cpu"):
        rates = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
        angles = torch.arange(length).unsqueeze(1) * rates
        positions = torch.stack((angles.sin(), angles.cos()), 2).reshape(length, -1)[:, :width]
    return positions.to(torch.empty(0).device)  # torch's default device, which old versions do not tell


class Embedding(nn.Module):
    """Words as vectors, scaled by the root of the width, and their positions added."""

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, dropout: float, longest: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(width)
        self.register_buffer("positions", sinusoidal_positions(longest, width), persistent=False)

    def forward(self, words: Tensor, start: int = 0) -> Tensor:
        """Map (N, T) numbers, of which the first is the word at position `start`, to (N, T, width).

        Raises:
            ValueError: for sentences longer than the positions there are.
        """
        length, longest = start + words.shape[1], self.positions.shape[0]
        if length > longest:
            raise ValueError(
                f"words: a sentence of {length} is longer than longest={longest}: cut it, or raise longest"
            )
        embedded: Tensor = self.dropout(self.words(words) * self.scale + self.positions[start:length])
        return embedded


class Attention(nn.Module):
    """Scaled dot-product attention of several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        """Map (N, T, width), looking at memory (N, S, width), to (N, T, width).

        `seen` is True where a position may be looked at, and broadcasts to (N, heads, T, S).
        """
        return self.attend(x, self.keys_and_values(memory), seen)

    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """What of memory (N, S, width) can be looked at, each (N, heads, S, width / heads)."""
        return self._split(self.k(memory)), self._split(self.v(memory))

    def attend(self, x: Tensor, memory: KeysAndValues, seen: Tensor | None) -> Tensor:
        """As `forward`, where keys and values are known already; without `seen` everything may be looked at."""
        mixed = functional.scaled_dot_product_attention(
            self._split(self.q(x)), *memory, attn_mask=seen, dropout_p=self.dropout if self.training else 0.0
        )
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        """(N, T, width) to (N, heads, T, width / heads)."""
        apart: Tensor = x.unflatten(2, (self.heads, -1))
        return apart.transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between, at each position alone."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__(nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, width))


class EncoderLayer(nn.Module):
    """Attention to the sentence itself, then feed-forward; each is added and normalised after, as in the paper."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.feedforward = FeedForward(width, hidden, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Map (N, S, width) to the same shape."""
        x = self.norm1(x + self.dropout(self.attention(x, x, seen)))
        out: Tensor = self.norm2(x + self.dropout(self.feedforward(x)))
        return out


class DecoderLayer(nn.Module):
    """Attention to the words so far, attention to the source, feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.cross_attention = Attention(width, heads, dropout)
        self.feedforward = FeedForward(width, hidden, dropout)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor, memory: Tensor, memory_seen: Tensor) -> Tensor:
        """Map (N, T, width) to the same shape."""
        x = self.norm1(x + self.dropout(self.attention(x, x, seen)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory, memory_seen)))
        out: Tensor = self.norm3(x + self.dropout(self.feedforward(x)))
        return out

    def next(self, x: Tensor, past: KeysAndValues | None, memory: KeysAndValues, memory_seen: Tensor) -> "_Next":
        """Map one more word (N, 1, width) to the same shape, and tell the keys and values it adds to the past."""
        new = self.attention.keys_and_values(x)
        keys, values = new if past is None else (torch.cat(pair, 2) for pair in zip(past, new, strict=True))
        x = self.norm1(x + self.dropout(self.attention.attend(x, (keys, values), None)))
        x = self.norm2(x + self.dropout(self.cross_attention.attend(x, memory, memory_seen)))
        return self.norm3(x + self.dropout(self.feedforward(x))), (keys, values)


_Next = tuple[Tensor, KeysAndValues]


@dataclass(frozen=True)
class Decoding:
    """Where translations under way are: what each decoder layer need not compute again for the next word.

    Attributes:
        length: Words so far.
        past: Keys and values of the words so far, layer by layer; empty before the first word.
        memory: Keys and values of the source, layer by layer.
        memory_seen: Where the source has words, (N, 1, 1, S).
    """

    length: int
    past: tuple[KeysAndValues, ...]
    memory: tuple[KeysAndValues, ...]
    memory_seen: Tensor

    def rows(self, chosen: Tensor) -> "Decoding":
        """The same for some of the translations, in the order given; one may be chosen several times."""

        def choose(parts: tuple[KeysAndValues, ...]) -> tuple[KeysAndValues, ...]:
            return tuple((keys[chosen], values[chosen]) for keys, values in parts)

        return Decoding(self.length, choose(self.past), choose(self.memory), self.memory_seen[chosen])


def _sentence_pair(**_: int) -> tuple[tuple[int, ...], ...]:
    """Sixteen words each, about as long as a caption of Multi30k."""
    return ((16,), (16,))


@register(
    "transformer",
    "multi30k",
    task="translation",
    inputs=_sentence_pair,
    source_vocabulary=10_000,
    target_vocabulary=10_000,
    layers=3,
    width=512,
    heads=8,
    hidden=512,
)
class Transformer(nn.Module):
    """Three encoder and three decoder layers by default: the sizes customary for Multi30k, as the paper gives none.

    The output layer is a linear layer of its own. Tied to the target's embedding it would save its weights, but a
    tied weight has two gradients, and that of looking words up is seen in no layer's output, so no prediction of it
    could be complete.
    """

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        layers: int = 3,
        width: int = 512,
        heads: int = 8,
        hidden: int = 512,
        dropout: float = 0.1,
        longest: int = LONGEST,
    ) -> None:
        """Build it with Glorot's uniform weights, as usual for Transformers.

        Args:
            source_vocabulary: Words of the language to translate from, special ones included.
            target_vocabulary: Words of the language to translate to, special ones included.
            layers: Layers of the encoder, and of the decoder.
            width: Size of a word's vector; `heads` must divide it.
            heads: Heads of each attention.
            hidden: Width inside the feed-forward parts.
            dropout: After the embeddings, in attentions and feed-forward parts, and before each addition.
            longest: Words of the longest sentence.
        """
        super().__init__()
        if width % heads:
            raise ValueError(f"heads: {heads} heads cannot share a width of {width}: choose a divisor of it")
        self.source = Embedding(source_vocabulary, width, dropout, longest)
        self.target = Embedding(target_vocabulary, width, dropout, longest)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.output = nn.Linear(width, target_vocabulary)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=width**-0.5)
                with torch.no_grad():
                    module.weight[PAD].zero_()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (N, S) and the target so far (N, T) to logits (N, T, target_vocabulary) of each next word.

        To train, give the target without its last word, and compare with the target without its first.
        """
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """Map the source (N, S) to its memory (N, S, width): once per sentence, however long the translation."""
        seen = _words(source)
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, seen)
        memory: Tensor = x
        return memory

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Map the target so far (N, T), the memory and the source it is of to logits (N, T, target_vocabulary)."""
        length = target.shape[1]
        past = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        seen, memory_seen = past & _words(target), _words(source)
        x = self.target(target)
        for layer in self.decoder:
            x = layer(x, seen, memory, memory_seen)
        logits: Tensor = self.output(x)
        return logits

    def begin(self, source: Tensor) -> Decoding:
        """Get ready to translate a source (N, S) word by word."""
        memory = self.encode(source)
        layers = tuple(layer.cross_attention.keys_and_values(memory) for layer in self._decoder_layers())
        return Decoding(0, (), layers, _words(source))

    def next(self, words: Tensor, state: Decoding) -> tuple[Tensor, Decoding]:
        """Map one more word of each translation (N,) to logits (N, target_vocabulary) of the one after it.

        The same as the last logits of `decode`, at the cost of one word instead of all so far.
        """
        x = self.target(words.unsqueeze(1), state.length)
        past = []
        for index, layer in enumerate(self._decoder_layers()):
            x, seen = layer.next(x, state.past[index] if state.past else None, state.memory[index], state.memory_seen)
            past.append(seen)
        logits: Tensor = self.output(x.squeeze(1))
        return logits, replace(state, length=state.length + 1, past=tuple(past))

    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))


def _words(numbers: Tensor) -> Tensor:
    """Where there is a word and no padding: (N, 1, 1, T)."""
    return (numbers != PAD)[:, None, None, :]
