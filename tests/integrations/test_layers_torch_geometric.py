"""PyG's linear layers, with the real library."""

import pytest
import torch
from torch import nn

from adagp import AdaGP, layers, schedules
from adagp.layers.coverage import find_layers

geometric = pytest.importorskip("torch_geometric.nn")


def test_rows_are_autograds_and_both_kinds_of_batches_run() -> None:
    torch.manual_seed(0)
    model = geometric.GCN(6, 8, 2, 3)
    nodes, edges = torch.randn(10, 6), torch.randint(0, 10, (2, 30))
    found, _ = find_layers(model, model.parameters())
    assert [layer.name for layer in found] == ["convs.0.lin", "convs.1.lin"]
    twin = nn.Linear(6, 8, bias=False)
    twin.weight = nn.Parameter(found[0].weight.detach().clone())
    found[0].module(nodes).square().sum().backward()
    twin(nodes).square().sum().backward()
    rows = found[0].gradient()
    assert rows is not None
    torch.testing.assert_close(rows.weight, twin.weight.grad)
    torch.testing.assert_close(found[0].reorganise(twin(nodes))[:, 0, 0, 0], twin(nodes).mean(0))
    model.zero_grad()
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.fixed(1, 1), predictor="paper")
    for _ in range(4):
        gp.step(lambda: model(nodes, edges).square().mean())
    assert gp.counts() == {"backprop": 4, "predicted": 4}


def test_a_lazy_layer_is_refused_by_name() -> None:
    model = geometric.Linear(-1, 4)
    assert layers.kind_of(model) is not None
    with pytest.raises(ValueError, match="is lazy and has no shape yet: run one forward"):
        find_layers(model, model.parameters())
