"""Layers of transformers' models, with the real library: what is covered, and that the rows are autograd's."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from adagp import AdaGP, Phase, Plan, schedules
from adagp.layers.coverage import find_layers
from scripts.layer_coverage import covered_share

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
VOCABULARY = 60


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**SMALL, vocab_size=VOCABULARY, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **SMALL, vocab_size=VOCABULARY, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2
    )
    return transformers.MixtralForCausalLM(config)


def loss(model: nn.Module, seed: int = 0) -> torch.Tensor:
    tokens = torch.randint(3, VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(seed))
    return model(input_ids=tokens, labels=tokens).loss


@pytest.mark.parametrize("build", [gpt2, llama, mixtral])
def test_rows_are_autograds(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build()
    layers, _ = find_layers(model, model.parameters())
    assert covered_share(model) > 0.9
    loss(model).backward()
    for layer in layers:
        truth = [parameter.grad.clone() for parameter in layer.parameters()]
        rows = layer.gradient()
        assert rows is not None
        assert rows.weight.shape == (layer.out, layer.fan_in)
        layer.assign(rows)
        for parameter, grad in zip(layer.parameters(), truth, strict=True):
            assert torch.equal(parameter.grad, grad), layer.name


def test_one_output_of_conv1d_touches_one_row() -> None:
    from transformers.pytorch_utils import Conv1D

    model = Conv1D(5, 3)
    (layer,), _ = find_layers(model, model.parameters())
    model(torch.randn(2, 4, 3))[..., 2].sum().backward()
    rows = layer.gradient()
    assert rows is not None
    assert [bool(row.any()) for row in rows.weight] == [False, False, True, False, False]
    assert rows.bias is not None
    assert [bool(row.any()) for row in rows.bias] == [False, False, True, False, False]


def test_an_expert_that_gets_no_token_has_no_gradient() -> None:
    torch.manual_seed(0)
    experts = mixtral().model.layers[0].mlp.experts
    up, down = find_layers(experts, experts.parameters())[0]
    assert (up.name, down.name) == ("gate_up_proj", "down_proj")
    tokens = torch.randn(6, 32)
    routed = torch.zeros(6, 1, dtype=torch.long)
    experts(tokens, routed, torch.ones(6, 1)).square().sum().backward()
    for layer in (up, down):
        rows = layer.gradient()
        assert rows is not None
        first, others = rows.weight[: layer.out // 3], rows.weight[layer.out // 3 :]
        assert first.any()
        assert not others.any()
    mean = up.reorganise(tokens)[:, 0, 0, 0]
    torch.testing.assert_close(mean[-96:], experts.gate_up_proj[2] @ tokens.mean(0))


@pytest.mark.parametrize("build", [gpt2, llama, mixtral])
def test_bp_gp_and_mixed_batches(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build()
    names = schedules.layer_names(model)
    plans = (
        Plan(Phase.BP, "backprop"),
        Plan(Phase.GP, "predicted"),
        Plan(Phase.BP, "backprop", dict.fromkeys(names[: len(names) // 2], "predicted")),
    )
    schedule = schedules.from_function(lambda step: plans[step % 3], ["backprop", "predicted"])
    gp = AdaGP(model, torch.optim.AdamW(model.parameters(), lr=1e-3), schedule, predictor="paper")
    graphs = []

    def closure() -> torch.Tensor:
        value = loss(model, gp.step_index)
        graphs.append(value.requires_grad)
        return value

    for _ in range(6):
        gp.step(closure)
    assert graphs == [True, False, True] * 2
    half = len(names) // 2
    assert gp.counts() == {"backprop": 2 * (2 * len(names) - half), "predicted": 2 * (len(names) + half)}
    assert all(parameter.isfinite().all() for parameter in model.parameters())
