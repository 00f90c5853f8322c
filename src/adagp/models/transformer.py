"""A Transformer that translates, after Vaswani et al. (2017), with explicit linear layers for queries, keys and values.

`nn.MultiheadAttention` uses its weights without calling a layer, so a hook sees the output of the last only. Here every
weight belongs to an `nn.Linear`.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp.models.registry import register

PAD = 0
"""The token that pads short sentences; it is never attended to."""
LONGEST = 512
"""Default for the tokens of the longest sentence."""
KeysAndValues = tuple[Tensor, Tensor]


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """The paper's positions, (length, width): sines at even indices, cosines of the same angles at odd ones."""
    with torch.device("cpu"):
        rates = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
        angles = torch.arange(length).unsqueeze(1) * rates
        positions = torch.stack((angles.sin(), angles.cos()), 2).reshape(length, -1)[:, :width]
    return positions.to(torch.empty(0).device)  # torch's default device


class Embedding(nn.Module):
    """Token vectors, scaled by the root of the width, plus the positional encoding."""

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, dropout: float, longest: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(width)
        self.register_buffer("positions", sinusoidal_positions(longest, width), persistent=False)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Map tokens (N, T), the first at position `start`, to (N, T, width).

        Raises:
            ValueError: for sentences longer than `longest`.
        """
        length, longest = start + tokens.shape[1], self.positions.shape[0]
        if length > longest:
            raise ValueError(
                f"tokens: a sentence of {length} is longer than longest={longest}: cut it, or raise longest"
            )
        embedded: Tensor = self.dropout(self.words(tokens) * self.scale + self.positions[start:length])
        return embedded


class Attention(nn.Module):
    """Scaled dot-product attention with several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Map (N, T, width), attending to memory (N, S, width), to (N, T, width).

        `mask` is True where a position may be attended to, and broadcasts to (N, heads, T, S).
        """
        return self.attend(x, self.keys_and_values(memory), mask)

    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """Keys and values of memory (N, S, width), each (N, heads, S, width / heads)."""
        return self._split(self.k(memory)), self._split(self.v(memory))

    def attend(self, x: Tensor, memory: KeysAndValues, mask: Tensor | None) -> Tensor:
        """Like `forward`, with keys and values already computed; without `mask` every position may be attended to."""
        mixed = functional.scaled_dot_product_attention(
            self._split(self.q(x)), *memory, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        """(N, T, width) to (N, heads, T, width / heads)."""
        apart: Tensor = x.unflatten(2, (self.heads, -1))
        return apart.transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between, applied to each position."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__(nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, width))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each with a residual connection and post-norm as in the paper."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.feedforward = FeedForward(width, hidden, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (N, S, width) to the same shape."""
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        out: Tensor = self.norm2(x + self.dropout(self.feedforward(x)))
        return out


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.cross_attention = Attention(width, heads, dropout)
        self.feedforward = FeedForward(width, hidden, dropout)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Map (N, T, width) to the same shape."""
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory, memory_mask)))
        out: Tensor = self.norm3(x + self.dropout(self.feedforward(x)))
        return out

    def next(self, x: Tensor, past: KeysAndValues | None, memory: KeysAndValues, memory_mask: Tensor) -> "_Next":
        """Map one more token (N, 1, width) to the same shape; also return the keys and values up to it."""
        new = self.attention.keys_and_values(x)
        keys, values = new if past is None else (torch.cat(pair, 2) for pair in zip(past, new, strict=True))
        x = self.norm1(x + self.dropout(self.attention.attend(x, (keys, values), None)))
        x = self.norm2(x + self.dropout(self.cross_attention.attend(x, memory, memory_mask)))
        return self.norm3(x + self.dropout(self.feedforward(x))), (keys, values)


_Next = tuple[Tensor, KeysAndValues]


@dataclass(frozen=True)
class Decoding:
    """State of unfinished translations: the keys and values that the next token reuses.

    Attributes:
        length: Tokens so far.
        past: Keys and values of the tokens so far, layer by layer; empty before the first token.
        memory: Keys and values of the source, layer by layer.
        memory_mask: True where the source is not padding, (N, 1, 1, S).
    """

    length: int
    past: tuple[KeysAndValues, ...]
    memory: tuple[KeysAndValues, ...]
    memory_mask: Tensor

    def rows(self, chosen: Tensor) -> "Decoding":
        """The state of the chosen translations, in that order; one may be chosen several times."""

        def choose(parts: tuple[KeysAndValues, ...]) -> tuple[KeysAndValues, ...]:
            return tuple((keys[chosen], values[chosen]) for keys, values in parts)

        return Decoding(self.length, choose(self.past), choose(self.memory), self.memory_mask[chosen])


def _sentence_pair(**_: int) -> tuple[tuple[int, ...], ...]:
    """Sixteen tokens each, about the length of a caption of Multi30k."""
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
    """Encoder and decoder of three layers each by default: usual sizes for Multi30k, because the paper states none.

    The output layer is not tied to the target's embedding. Tying would save its weights, but a tied weight has two
    gradients, and that of the look-up shows in no layer's output, so its prediction would be incomplete.
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
        """Initialise with Glorot's uniform weights, as usual for Transformers.

        Args:
            source_vocabulary: Tokens of the source language, special ones included.
            target_vocabulary: Tokens of the target language, special ones included.
            layers: Layers of the encoder, and of the decoder.
            width: Size of a token's vector; `heads` must divide it.
            heads: Heads of each attention.
            hidden: Width inside the feed-forward parts.
            dropout: After the embeddings, in attentions and feed-forward parts, and before each addition.
            longest: Tokens of the longest sentence.
        """
        super().__init__()
        if width % heads:
            raise ValueError(f"heads: {heads} does not divide the width {width}: choose a divisor of it")
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
        """Map source (N, S) and the target so far (N, T) to logits (N, T, target_vocabulary) of each next token.

        For training, pass the target without its last token, and compare with the target without its first.
        """
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """Map the source (N, S) to its memory (N, S, width), once per sentence."""
        mask = _not_padding(source)
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, mask)
        memory: Tensor = x
        return memory

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Map the target so far (N, T), the memory and its source to logits (N, T, target_vocabulary)."""
        length = target.shape[1]
        past = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        mask, memory_mask = past & _not_padding(target), _not_padding(source)
        x = self.target(target)
        for layer in self.decoder:
            x = layer(x, mask, memory, memory_mask)
        logits: Tensor = self.output(x)
        return logits

    def begin(self, source: Tensor) -> Decoding:
        """The state before the first token of the translations of a source (N, S)."""
        memory = self.encode(source)
        layers = tuple(layer.cross_attention.keys_and_values(memory) for layer in self._decoder_layers())
        return Decoding(0, (), layers, _not_padding(source))

    def next(self, tokens: Tensor, state: Decoding) -> tuple[Tensor, Decoding]:
        """Map one more token of each translation (N,) to logits (N, target_vocabulary) of the next.

        These are the last logits of `decode`, at the cost of one token instead of all so far.
        """
        x = self.target(tokens.unsqueeze(1), state.length)
        past = []
        for index, layer in enumerate(self._decoder_layers()):
            x, keys_and_values = layer.next(
                x, state.past[index] if state.past else None, state.memory[index], state.memory_mask
            )
            past.append(keys_and_values)
        logits: Tensor = self.output(x.squeeze(1))
        return logits, replace(state, length=state.length + 1, past=tuple(past))

    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))


def _not_padding(tokens: Tensor) -> Tensor:
    """Attention mask of tokens (N, T): (N, 1, 1, T), True where there is no padding."""
    return (tokens != PAD)[:, None, None, :]
