"""Language models of the transformers library, built from a small configuration without a download."""

from typing import Any

import torch
from torch import Tensor

NAMES = ("gpt2", "bert")
TOKENS, VOCABULARY, WIDTH = 64, 2_000, 128
"""Sequence length, vocabulary and hidden size."""


def build(name: str, batch_size: int, count: int, **options: Any) -> tuple[Any, ...]:
    """The model, its optimizer, the model's own loss, and some batches of tokens; `options` are the optimizer's."""
    import transformers

    if name == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=TOKENS,
                n_embd=WIDTH,
                n_layer=4,
                n_head=4,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    else:
        model = transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=VOCABULARY,
                max_position_embeddings=TOKENS,
                hidden_size=WIDTH,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=4 * WIDTH,
            )
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    batches = [torch.randint(1, VOCABULARY, (batch_size, TOKENS)) for _ in range(count)]

    def loss(tokens: Any) -> Tensor:
        found: Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    return model, optimizer, loss, batches
