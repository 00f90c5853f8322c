"""The libraries of these tests, which may be missing, and small things that several of them train."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, coarse, schedules
from adagp.extras import INTEGRATIONS


def needs(*modules: str) -> None:
    """Skip the test file, by name, where a library is not installed. Their own warnings at import are theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            extra = INTEGRATIONS[module].extra if module in INTEGRATIONS else "integrations"
            pytest.importorskip(module, reason=f"{module} is not installed: pip install 'adagp[{extra}]'")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def samples(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, generator=generator), torch.tensor(index % 3)) for index in range(count)]


def micro_batches(count: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    return list(torch.utils.data.DataLoader(samples(count * size), batch_size=size))  # type: ignore[arg-type]


def same(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def norm_of(parameters: Any) -> float:
    grads = [part.grad for part in parameters if part.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0


def image_net() -> nn.Sequential:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*features, nn.Linear(6, 3))


def image_samples(count: int) -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(3, 8, 8, generator=generator), index % 3) for index in range(count)]


def trained_by_hand_on_growing_images(batches: int, steps: int) -> nn.Module:
    """The network after these steps of `schedules.progressive`, by `gp.step`, over the batches of `image_samples`."""
    model = image_net()
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.progressive(steps), None)
    loader = torch.utils.data.DataLoader(image_samples(4 * batches), batch_size=4)  # type: ignore[arg-type]
    for _ in range(steps // batches):
        for x, y in loader:
            gp.step(lambda scale, x=x, y=y: nn.functional.cross_entropy(model(coarse.images(x, scale)), y))
    return model
