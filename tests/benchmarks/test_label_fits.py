import torch
from torch.nn.functional import cross_entropy

from adagp._engine.statistics import kept_statistics
from adagp.models.resnet_cifar import SmallResNet
from benchmarks.label_fits import PREDICTORS, Fit, Seen, active_means, predictions, show, totals


def test_what_is_shown_is_what_autograd_gives() -> None:
    torch.manual_seed(0)
    model = SmallResNet(1, num_classes=10, in_channels=3)
    batch = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    shown = show(model, batch)
    with kept_statistics(model):
        cross_entropy(model(batch[0]), batch[1]).backward()
    assert len(shown.layers) == 7
    for name, gradient in shown.true.items():
        true = model.get_submodule(name).weight.grad
        assert isinstance(true, torch.Tensor)
        assert torch.allclose(gradient, true.flatten(), atol=1e-5), name
    fits = {
        predictor: {name: Fit(active_means if gated else totals) for name in shown.layers}
        for predictor, (_, gated) in PREDICTORS.items()
    }
    for predictor, (features, _) in PREDICTORS.items():
        for name, seen in shown.layers.items():
            fits[predictor][name].add(shown.features[features], seen)
    for gradient in predictions(shown, fits).values():
        assert {name: one.shape for name, one in gradient.items()} == {n: g.shape for n, g in shown.true.items()}


def test_a_linear_map_is_found() -> None:
    torch.manual_seed(0)
    module, wanted = torch.nn.Conv2d(2, 3, 1), torch.randn(5, 3)
    fit = Fit(totals)
    for _ in range(20):
        features = torch.randn(64, 5)
        grad = (features @ wanted)[..., None, None].expand(-1, -1, 2, 2) / 4
        fit.add(features, Seen(module, torch.zeros(64, 2, 2, 2), grad, grad > 0))
    features = torch.randn(4, 5)
    assert torch.allclose(fit.predict(features), features @ wanted, rtol=0.05, atol=0.05)
