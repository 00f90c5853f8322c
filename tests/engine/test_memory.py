"""Invariant 2: a GP batch needs the memory of inference, plus the rows of one layer where updates are immediate."""

import pytest
import torch
from torch import nn

from adagp import AdaGP, schedules
from adagp.measure import peak_bytes

WIDTH, DEPTH = 512, 6
ROWS = 4 * WIDTH * WIDTH  # bytes of one layer's rows


def mlp() -> nn.Sequential:
    """Weights far larger than activations, so that rows dominate."""
    return nn.Sequential(*[part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())])


def gp_peak(immediate: bool, predictor: str) -> int:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    gp = AdaGP(model, optimizer, schedules.ladder(3, 1, 1, rungs=((1, 0),)), predictor, immediate=immediate)
    x = torch.randn(8, WIDTH)
    for _ in range(4):
        gp.step(lambda: model(x).square().mean())
    assert gp.next_plan().phase.value == "GP"
    return peak_bytes(lambda: gp.step(lambda: model(x).square().mean()), torch.device("cpu"))


def inference_peak() -> int:
    model, x = mlp(), torch.randn(8, WIDTH)
    with torch.no_grad():
        return peak_bytes(lambda: model(x), torch.device("cpu"))


@pytest.mark.parametrize("predictor", ["trusted", "paper"])
def test_immediate_updates_hold_the_rows_of_one_layer(predictor: str) -> None:
    assert gp_peak(True, predictor) < inference_peak() + 1.5 * ROWS


def test_deferred_updates_hold_the_rows_of_all_layers_and_no_more() -> None:
    peak = gp_peak(False, "paper")
    features = DEPTH * 3 * WIDTH * 17 * 4  # of all layers at once: pooled, scaled, and behind the convolution
    assert (DEPTH - 0.5) * ROWS < peak < inference_peak() + (DEPTH + 0.25) * ROWS + features


def test_a_convolution_net_needs_no_more_than_inference() -> None:
    """Where activations dominate, as they do in convolution nets, deferred rows come after the forward's peak."""

    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())

    x = torch.randn(16, 3, 24, 24)
    model, plain = net(), net()
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), schedules.ladder(2, 1, 1))
    for _ in range(2):
        gp.step(lambda: model(x).square().mean())
    assert gp.next_plan().phase.value == "GP"
    with torch.no_grad():
        inference = peak_bytes(lambda: plain(x).square().mean(), torch.device("cpu"))
    assert peak_bytes(lambda: gp.step(lambda: model(x).square().mean()), torch.device("cpu")) < 1.05 * inference
