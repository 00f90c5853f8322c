"""Small models and oracles that several test files share."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adagp import predictors
from adagp._engine.capture.recorder import Poolers
from adagp.layers import Layer
from adagp.predictors import Features, Predictor, TrustedPredictor
from adagp.quality import GradientAlignment, mean_absolute_percentage_errors


def small_cnn(inplace: bool = True) -> nn.Sequential:
    """Convolution, batch norm, in-place activation, depthwise convolution, two linear layers."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.ReLU(inplace=inplace),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 9, 8),
        nn.ReLU(inplace=inplace),
        nn.Linear(8, 3),
    )


@predictors.register("with-network")
def with_network() -> TrustedPredictor:
    """The default predictor with its network, which models as small as those here do without."""
    return TrustedPredictor(fewest_weights=0)


class Functional(nn.Module):
    """Uses the weight of `hidden` without calling the module."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.linear(x, self.hidden.weight))  # type: ignore[no-any-return]


def batches(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 2, 6, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


def build(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return small_cnn()


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def equal_parameters(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def alignment(predicted: Tensor, true: Tensor) -> GradientAlignment:
    """Compare two tensors element by element: the plain definition that faster ways are tested against."""
    predicted, true = predicted.double().flatten(), true.double().flatten()
    return GradientAlignment(
        dot=float(predicted @ true),
        predicted_square=float(predicted @ predicted),
        true_square=float(true @ true),
        count=true.numel(),
        mape=mean_absolute_percentage_errors([predicted], [true])[0],
    )


def look(predictor: Predictor, layer: Layer, output: Tensor) -> Features:
    """What a predictor sees of one output."""
    pooler = Poolers.of(predictor.needs).output
    assert pooler is not None
    return Features(pooler.pool([(layer, pooler.sum_samples(layer, output))])[0])
