"""A small decoder-only Transformer for next-token prediction, after Radford et al. (2019).

As in GPT-2, the norms come before each part and the feed-forward is four times as wide. Positions are sinusoidal rather
than learnt: a coarse batch has a shorter context, and learnt vectors of the later positions would stay untrained in it.
"""

import torch
from torch import Tensor, nn

from adagp.models.registry import register
from adagp.models.transformer import PAD, Attention, Embedding

UNTIED, TIED = "untied", "tied"
"""The forms: whether the output layer has a weight of its own or that of the embedding."""
_SIZES = {"vocabulary": 4000, "context": 128, "layers": 4, "width": 256, "heads": 8}


class Block(nn.Module):
    """Causal self-attention, then feed-forward, each after a norm and beside a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.feedforward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (N, T, width) to the same shape."""
        normed = self.norm1(x)
        x = x + self.dropout(self.attention(normed, normed, mask))
        out: Tensor = x + self.dropout(self.feedforward(self.norm2(x)))
        return out


class GPT(nn.Module):
    """Maps tokens to logits of each next token."""

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        layers: int,
        width: int,
        heads: int,
        dropout: float = 0.1,
        tied: bool = False,
    ) -> None:
        """Initialise as GPT-2 does: normal weights of standard deviation 0.02, smaller where a residual is added to.

        Args:
            vocabulary: Tokens, special ones included.
            context: Tokens of the longest sequence.
            layers: Blocks.
            width: Size of a token's vector; `heads` must divide it.
            heads: Heads of each attention.
            dropout: After the embedding, in attentions, and before each addition.
            tied: Whether the output layer has the embedding's weight. A tied weight has two gradients, and the
                look-up's shows in no layer's output: a prediction is of the output layer's only.
        """
        super().__init__()
        if width % heads:
            raise ValueError(f"heads: {heads} does not divide the width {width}: choose a divisor of it")
        self.embedding = Embedding(vocabulary, width, dropout, context)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                adds = name.endswith(("attention.o", "feedforward.2"))
                nn.init.normal_(module.weight, std=0.02 * (2 * layers) ** -0.5 if adds else 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.words.weight, std=width**-0.5)
        with torch.no_grad():
            self.embedding.words.weight[PAD].zero_()
        if tied:
            self.output.weight = self.embedding.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (N, T) to logits (N, T, vocabulary) of the token after each.

        Raises:
            ValueError: for sequences longer than the context.
        """
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.output(self.norm(x))
        return logits


def _sequence(*, context: int, **_: int) -> tuple[tuple[int, ...], ...]:
    return ((context,),)


@register("gpt", UNTIED, task="next-token", inputs=_sequence, **_SIZES)
def untied(**sizes: int) -> GPT:
    """GPT whose output layer can be predicted whole."""
    return GPT(**sizes, tied=False)


@register("gpt", TIED, task="next-token", inputs=_sequence, **_SIZES)
def tied(**sizes: int) -> GPT:
    """GPT with one weight for embedding and output layer, which saves a third to a half of a small network."""
    return GPT(**sizes, tied=True)
