"""The share of well-known models that `adagp` covers: the table of docs/layers.md, from the real libraries."""

import sys
from collections.abc import Callable

import torch
from torch import nn

from adagp.layers.coverage import find_layers, present_coverage


def _transformers(name: str, **config: object) -> nn.Module:
    import transformers

    model: nn.Module = getattr(transformers, name)(getattr(transformers, name).config_class(**config))
    return model


def _unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel()  # type: ignore[no-any-return]


def _graph(name: str) -> nn.Module:
    import torch_geometric.nn

    model: nn.Module = getattr(torch_geometric.nn, name)(128, 256, 3, 40)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: _transformers("GPT2LMHeadModel"),
    "BERT": lambda: _transformers("BertForMaskedLM"),
    "ViT": lambda: _transformers("ViTForImageClassification"),
    "T5": lambda: _transformers("T5ForConditionalGeneration"),
    "Llama": lambda: _transformers("LlamaForCausalLM"),
    "Mixtral": lambda: _transformers("MixtralForCausalLM"),
    "Whisper": lambda: _transformers("WhisperForConditionalGeneration"),
    "UNet of Stable Diffusion (diffusers)": _unet,
    "GCN (PyG)": lambda: _graph("GCN"),
    "GAT (PyG)": lambda: _graph("GAT"),
    "GraphSAGE (PyG)": lambda: _graph("GraphSAGE"),
    "`nn.Transformer`": lambda: nn.Transformer(batch_first=True),
}
"""Each in the size that its library gives it by default."""


def _rows(model: nn.Module) -> list[tuple[str, int, int]]:
    """Kind, parameters and covered parameters of every module but embeddings, which are looked up, not multiplied."""
    layers, reasons = find_layers(model, model.parameters())
    coverage = present_coverage(model, list(model.parameters()), layers, reasons)
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    return [(row.kind, row.trained, row.supplied) for row in coverage.rows if row.layer not in embeddings]


def covered_share(model: nn.Module) -> float:
    """The share of the trained parameters, other than embeddings, that are covered."""
    rows = _rows(model)
    return sum(supplied for *_, supplied in rows) / sum(trained for _, trained, _ in rows)


def table() -> list[str]:
    """The lines of the table."""
    lines = ["| model | million parameters without embeddings | covered % | not covered |", "|---|--:|--:|---|"]
    for name, build in MODELS.items():
        with torch.device("meta"):
            model = build()
        rows = _rows(model)
        total = sum(trained for _, trained, _ in rows)
        gaps: dict[str, int] = {}
        for kind, trained, supplied in rows:
            if trained > supplied:
                gaps[kind] = gaps.get(kind, 0) + trained - supplied
        largest = ", ".join(f"`{kind}`" for kind in sorted(gaps, key=lambda kind: -gaps[kind])[:3])
        lines.append(f"| {name} | {total / 1e6:,.1f} | {100 * covered_share(model):.1f} | {largest} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join([*table(), ""]))
