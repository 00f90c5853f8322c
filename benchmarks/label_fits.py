"""Would a better fit make predictions that see the labels worth their batches? `python -m benchmarks.label_fits`.

A ResNet-8 trains plainly on CIFAR-10 (12,800 images, batch 128, SGD with Nesterov momentum 0.9, weight decay 5e-4) at a
constant learning rate. After each of four epochs the weights rest. The gradients of some batches fit each predictor by
ridge regression. On pairs of other batches its prediction for one batch is compared with the true gradients of both. So
a fit here is fresher than any that learns while weights move. The predictors:

- `error`: the pooled `grad_output` of each sample from the gradient of the loss at the model's output, times the pooled
  input. This is `label-aware`.
- `richer`: from that gradient, and its products with the features before the last layer.
- `gated`: `grad_output` at each position, 0 where the known activation is 0; times the input there, as in a backward.
- `gated richer`: both.
- `last stage`: like `gated`, from the true gradient before the last stage, in 2 x 2 cells; the last stage is exact.
- `pooled truth`: the true pooled `grad_output` times the pooled input. What no fit of the first kind can exceed.

Results are added to `benchmarks/results/label-fits.json`, rate by rate. Data: the folder named by ADAGP_DATA.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy
from torch.nn.grad import conv2d_weight

from adagp._engine.statistics import kept_statistics
from adagp.models.resnet_cifar import SmallResNet
from benchmarks.coarse import BATCH, TRAIN, load
from benchmarks.label_aware import PAIRS, Batches, Gradient, cosine
from benchmarks.runs import Runs
from benchmarks.study import RESULTS

EPOCHS, FITTED_BATCHES, RIDGE = 4, 30, 1e-2
LRS = (0.1, 0.8, 0.01)


@dataclass(frozen=True)
class Case:
    """A run at one learning rate."""

    lr: float
    seed: int = 0


@dataclass(frozen=True)
class Seen:
    """What one layer shows in one batch.

    Attributes:
        module: The layer.
        x: Its input.
        grad: The gradient at its output.
        mask: Where the activation after it is positive.
    """

    module: nn.Conv2d
    x: Tensor
    grad: Tensor
    mask: Tensor

    def weight_grad(self, grad: Tensor) -> Tensor:
        """The gradient of the weight, given one at the output."""
        module = self.module
        found: Tensor = conv2d_weight(self.x, module.weight.shape, grad, module.stride, module.padding)
        return found.flatten()

    def pooled_grad(self, totals: Tensor) -> Tensor:
        """The gradient of the weight from sums of the output's gradient, `(samples, out)`, and the mean input."""
        taps = self.module.weight[0, 0].numel()
        return (totals.t() @ self.x.mean((2, 3)))[..., None].expand(-1, -1, taps).flatten()


@dataclass(frozen=True)
class Shown:
    """One batch: its layers, and what predictors see of each sample."""

    layers: dict[str, Seen]
    features: dict[str, Tensor]

    @property
    def true(self) -> Gradient:
        """The true gradients."""
        return {name: seen.weight_grad(seen.grad) for name, seen in self.layers.items()}


def show(model: SmallResNet, batch: tuple[Tensor, Tensor]) -> Shown:
    """Run a batch forward and backward, and look at everything."""
    kept: dict[str, Tensor] = {}
    convolutions = {name: one for name, one in model.named_modules() if isinstance(one, nn.Conv2d)}
    watched = {**convolutions, "stem": model.stem, "features": model.head[1], "head": model.head}
    watched |= {f"stages.{stage}": model.stages[stage] for stage in range(3)}

    def look(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            kept[f"{name} in"], kept[f"{name} out"] = inputs[0].detach(), output.detach()
            output.register_hook(lambda grad: kept.update({f"{name} grad": grad}))

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in watched.items()]
    with kept_statistics(model):
        cross_entropy(model(batch[0]), batch[1]).backward()
    model.zero_grad(set_to_none=True)
    for handle in handles:
        handle.remove()
    layers = {
        name: Seen(module, kept[f"{name} in"], kept[f"{name} grad"], _after(name, kept) > 0)
        for name, module in convolutions.items()
    }
    error, features = kept["head grad"] * len(batch[1]), kept["features out"]
    products = (error[:, :, None] * (features / features.std())[:, None]).flatten(1)
    cells = adaptive_avg_pool2d(kept["stages.1 grad"] * len(batch[1]), 2).flatten(1)
    return Shown(layers, {"error": error, "richer": torch.cat([error, products], 1), "last stage": cells})


def _after(name: str, kept: dict[str, Tensor]) -> Tensor:
    """The activation after a layer."""
    if name.endswith("conv1"):
        return kept[name.replace("conv1", "conv2") + " in"]
    return kept[("stem" if name == "stem.0" else name[: len("stages.0")]) + " out"]


class Fit:
    """Ridge regression from features to one value for each sample and output channel."""

    def __init__(self, target: Callable[[Seen], Tensor]) -> None:
        """`target` is what is regressed."""
        self._target = target
        self._squares: Tensor | None = None
        self._products: Tensor | None = None

    def add(self, features: Tensor, seen: Seen) -> None:
        """Learn from one batch."""
        phi, target = features.double(), self._target(seen).double()
        squares, products = phi.t() @ phi, phi.t() @ target
        self._squares = squares if self._squares is None else self._squares + squares
        self._products = products if self._products is None else self._products + products

    def predict(self, features: Tensor) -> Tensor:
        """The values for a batch."""
        assert self._squares is not None
        assert self._products is not None
        ridge = RIDGE * self._squares.diagonal().mean() * torch.eye(len(self._squares), dtype=torch.double)
        solved: Tensor = torch.linalg.solve(self._squares + ridge, self._products)
        return (features.double() @ solved).float()


def totals(seen: Seen) -> Tensor:
    """The sums of the output's gradient over positions."""
    return seen.grad.sum((2, 3))


def active_means(seen: Seen) -> Tensor:
    """The means of the output's gradient over the active positions."""
    return (seen.grad * seen.mask).sum((2, 3)) / seen.mask.sum((2, 3)).clamp(min=1)


PREDICTORS = {
    "error": ("error", False),
    "richer": ("richer", False),
    "gated": ("error", True),
    "gated richer": ("richer", True),
    "last stage": ("last stage", True),
}
"""The features of each, and whether it is gated."""


def predictions(shown: Shown, fits: dict[str, dict[str, Fit]]) -> dict[str, Gradient]:
    """What each predictor gives for a batch."""
    found: dict[str, Gradient] = {
        "pooled truth": {name: seen.pooled_grad(totals(seen)) for name, seen in shown.layers.items()}
    }
    for predictor, (features, gated) in PREDICTORS.items():
        gradient: Gradient = {}
        for name, seen in shown.layers.items():
            if predictor == "last stage" and name.startswith("stages.2"):
                gradient[name] = seen.weight_grad(seen.grad)
                continue
            values = fits[predictor][name].predict(shown.features[features])
            spread = values[..., None, None] * seen.mask
            gradient[name] = seen.weight_grad(spread) if gated else seen.pooled_grad(values)
        found[predictor] = gradient
    return found


def run(case: Case, images: Tensor, labels: Tensor) -> dict[str, object]:
    """The cosines after each epoch, averaged over pairs, of each layer and of all together."""
    torch.manual_seed(case.seed)
    model = SmallResNet(1, num_classes=10, in_channels=3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    work, unseen = Batches(images, labels, case.seed), Batches(images, labels, case.seed + 1000)
    points = []
    for _ in range(EPOCHS):
        for _ in range(TRAIN // BATCH):
            x, y = work.next()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        fits: dict[str, dict[str, Fit]] = {predictor: {} for predictor in PREDICTORS}
        for _ in range(FITTED_BATCHES):
            shown = show(model, work.next())
            for predictor, (features, gated) in PREDICTORS.items():
                for name, seen in shown.layers.items():
                    fit = fits[predictor].setdefault(name, Fit(active_means if gated else totals))
                    fit.add(shown.features[features], seen)
        points.append(_compare(model, unseen, fits))
        print(f"lr {case.lr}", {name: round(row["all"], 3) for name, row in points[-1].items()}, flush=True)
    return {"points": points}


def _compare(model: SmallResNet, unseen: Batches, fits: dict[str, dict[str, Fit]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(PAIRS):
        shown = show(model, unseen.next())
        true, other = shown.true, show(model, unseen.next()).true
        compared = {"true, another batch": (true, other)}
        for predictor, gradient in predictions(shown, fits).items():
            compared |= {f"{predictor}, same batch": (gradient, true), f"{predictor}, another batch": (gradient, other)}
        for name, pair in compared.items():
            row = found.setdefault(name, {})
            for layer in (None, *true):
                row.setdefault(layer or "all", []).append(cosine(*pair, layer))
    return {name: {layer: mean(values) for layer, values in row.items()} for name, row in found.items()}


def main() -> None:
    """Run what is missing, and print means over epochs."""
    torch.set_num_threads(1)
    runs = Runs(RESULTS / "label-fits.json")
    images, labels, _ = load()
    for case in map(Case, LRS):
        if runs.get(case) is None:
            runs.add(case, run(case, images, labels))
        points = (runs.get(case) or {})["points"]
        for name in points[0]:
            layers = [value for point in points for layer, value in point[name].items() if layer != "all"]
            print(f"lr {case.lr:<5} {name:28} {mean(layers):5.2f} ({min(layers):.2f} to {max(layers):.2f})")


if __name__ == "__main__":
    main()
