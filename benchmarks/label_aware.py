"""How predictions that see the labels agree with true gradients, and what they are worth.

`python -m benchmarks.label_aware RUNS.json`: a ResNet-8 on CIFAR-10 (12,800 images), batch 128, SGD with Nesterov
momentum 0.9, weight decay 5e-4. RUNS.json holds the finished cases, so that a study continues where it was stopped;
`--table` prints what is there. Data: the folder named by ADAGP_DATA.

Agreement: a plain run at a constant learning rate, on which the predictor only watches. After each epoch, on pairs of
batches that it has not learned from, the prediction for one batch is compared with the true gradient of the same batch
and with that of the other, beside the cosine of the two true gradients. Worth: 8 epochs, one of warm-up, then one GP
batch for each BP batch, with cosine decay, and plain runs for comparison, all of three seeds.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, data, schedules
from adagp._engine.statistics import kept_statistics
from adagp.models.resnet_cifar import SmallResNet
from adagp.predictors import LabelAwarePredictor, Predictor
from benchmarks.coarse import BATCH, TEST, TRAIN, load
from benchmarks.runs import Runs

PAIRS = 6
AGREEMENT_EPOCHS, WORTH_EPOCHS = 4, 8
WORTH_LR, SEEDS = 0.4, 3
MEAN_DECAY = 0.9
BP, GP, SKIP = Plan(Phase.BP, "backprop"), Plan(Phase.GP, "predicted"), Plan(Phase.GP, "skip")
Gradient = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        question: `agreement` or `worth`.
        method: `label-aware`, `paper`, `skip` (GP batches are left out), or `plain`.
        lr: The learning rate; at its peak where it decays.
        epochs: The length of the run.
        exact_head: Whether the last layer is exact.
        seed: Of the weights and the order.
    """

    question: str
    method: str
    lr: float
    epochs: float
    exact_head: bool = True
    seed: int = 0


def cases() -> Iterator[Case]:
    """The study, in order of weight."""
    for lr in (0.1, 0.8, 0.01):
        yield Case("agreement", "label-aware", lr, AGREEMENT_EPOCHS, exact_head=False)
    for seed in range(SEEDS):
        for method in ("label-aware", "skip"):
            yield Case("worth", method, WORTH_LR, WORTH_EPOCHS, seed=seed)
        # A GP batch costs about a third of a BP batch: half of 7 epochs at a third saves 2.3 of 8.
        yield Case("worth", "plain", WORTH_LR, 5.7, seed=seed)
    for lr in (0.1, 0.8, 0.01):
        yield Case("agreement", "paper", lr, AGREEMENT_EPOCHS)


class Batches:
    """Augmented training batches, endlessly."""

    def __init__(self, images: Tensor, labels: Tensor, seed: int) -> None:
        """`seed` decides order and augmentation."""
        self._images, self._labels = images, labels
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.empty(0, dtype=torch.long)
        self._augment = data.Augment(padding=4, flip=True)

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch."""
        if len(self._order) < BATCH:
            self._order = torch.randperm(TRAIN, generator=self._generator)
        picked, self._order = self._order[:BATCH], self._order[BATCH:]
        images = self._augment(self._images[picked], self._generator)
        return images.contiguous(memory_format=torch.channels_last), self._labels[picked]


def predictor_of(case: Case) -> Predictor | str | None:
    """The predictor of a case."""
    return (
        LabelAwarePredictor(exact_head=case.exact_head)
        if case.method == "label-aware"
        else ("paper" if case.method == "paper" else None)
    )


class Study:
    """One model under `AdaGP`, whose plan is ours to choose."""

    def __init__(self, case: Case) -> None:
        """Build everything."""
        torch.manual_seed(case.seed)
        self.plan = BP
        self.model: nn.Module = SmallResNet(1, num_classes=10, in_channels=3)
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=case.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        schedule = schedules.from_function(lambda step: self.plan, ["backprop", "predicted", "skip"])
        self.gp = AdaGP(self.model, self.optimizer, schedule, predictor_of(case))
        self.layers = list(self.gp._setup.layers)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def step(self, plan: Plan, batch: tuple[Tensor, Tensor]) -> None:
        """Train one batch under a plan."""
        self.plan = plan
        self.gp.step(lambda: self.loss(batch))

    def _gradient(self) -> Gradient:
        found = {
            layer.name: layer.weight.grad.detach().flatten().clone()
            for layer in self.layers
            if layer.weight.grad is not None
        }
        self.optimizer.zero_grad(set_to_none=True)
        return found

    def true(self, batch: tuple[Tensor, Tensor]) -> Gradient:
        """The true gradient; nothing learns from it."""
        with kept_statistics(self.model):
            self.loss(batch).backward()
        return self._gradient()

    def predicted(self, batch: tuple[Tensor, Tensor]) -> Gradient:
        """What the predictor would apply."""
        self.plan = GP
        with kept_statistics(self.model), self.gp.batch() as open_batch:
            open_batch.backward(self.loss(batch))
        return self._gradient()


def cosine(one: Gradient, two: Gradient, layer: str | None = None) -> float:
    """The cosine of two gradients, of one layer or of all together; a layer without a gradient counts as zero."""
    names = [layer] if layer else sorted(one.keys() | two.keys())
    dot = sum(float(one[name] @ two[name]) for name in names if name in one and name in two)
    squares = [sum(float(side[name] @ side[name]) for name in names if name in side) for side in (one, two)]
    return dot / (squares[0] * squares[1]) ** 0.5 if min(squares) > 0 else 0.0


def agreement(case: Case, images: Tensor, labels: Tensor) -> dict[str, object]:
    """The cosines after each epoch, of each layer and of all together."""
    study, work, unseen = Study(case), Batches(images, labels, case.seed), Batches(images, labels, case.seed + 1000)
    mean: Gradient = {}
    points = []
    steps = TRAIN // BATCH
    for epoch in range(int(case.epochs)):
        for _ in range(steps):
            batch = work.next()
            study.plan = BP
            with study.gp.batch() as open_batch:
                open_batch.backward(study.loss(batch))
            for layer in study.layers:
                grad = layer.weight.grad
                assert grad is not None
                kept = mean.setdefault(layer.name, torch.zeros_like(grad).flatten())
                kept.lerp_(grad.detach().flatten(), 1 - MEAN_DECAY)
            open_batch.step()
            study.optimizer.zero_grad(set_to_none=True)
        points.append({"epoch": epoch + 1, **_compare(study, unseen, mean)})
    return {"points": points}


def _compare(study: Study, unseen: Batches, mean: Gradient) -> dict[str, object]:
    names: list[str | None] = [None, *(layer.name for layer in study.layers)]
    sums: dict[str, dict[str, float]] = {name or "all": {} for name in names}
    for _ in range(PAIRS):
        one, two = unseen.next(), unseen.next()
        guess, true, other = study.predicted(one), study.true(one), study.true(two)
        for name in names:
            row = sums[name or "all"]
            for key, pair in {
                "same": (guess, true),
                "other": (guess, other),
                "true": (true, other),
                "mean": (mean, true),
            }.items():
                row[key] = row.get(key, 0.0) + cosine(*pair, name) / PAIRS
    return {"cosines": sums}


def worth(case: Case, images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor]) -> dict[str, object]:
    """Accuracy in per cent, and CPU seconds."""
    study, work = Study(case), Batches(images, labels, case.seed)
    steps = round(case.epochs * TRAIN / BATCH)
    warmup = TRAIN // BATCH
    gp_plan = {"label-aware": GP, "paper": GP, "skip": SKIP, "plain": BP}[case.method]
    start = process_time()
    for step in range(steps):
        progress = step / steps
        factor = progress / 0.1 if progress < 0.1 else (1 + cos(pi * (progress - 0.1) / 0.9)) / 2
        for group in study.optimizer.param_groups:
            group["lr"] = case.lr * factor
        batch = work.next()
        study.step(gp_plan if step >= warmup and step % 2 else BP, batch)
    seconds = process_time() - start
    study.model.eval()
    with torch.no_grad():
        pairs = zip(test[0].split(500), test[1].split(500), strict=True)
        right = sum(int((study.model(x).argmax(1) == y).sum()) for x, y in pairs)
    return {"accuracy": 100 * right / TEST, "seconds": seconds, "counts": study.gp.counts()}


def show(case: Case, found: dict[str, object]) -> None:
    """Print one finished case."""
    print(f"{case.question} {case.method} lr {case.lr} epochs {case.epochs}")
    if case.question == "worth":
        print(f"  {found['accuracy']:.1f} % {found['seconds']:.0f} s")
        return
    for point in found["points"]:  # type: ignore[attr-defined]
        for layer, row in point["cosines"].items():
            print(f"  epoch {point['epoch']} {layer:18}", *(f"{name} {value:6.3f}" for name, value in row.items()))


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    runs = Runs(options.runs)
    if options.table:
        for case in cases():
            if found := runs.get(case):
                show(case, found)
        return
    torch.set_num_threads(1)
    images, labels, test = load()
    for case in cases():
        if runs.get(case) is None:
            is_agreement = case.question == "agreement"
            runs.add(case, agreement(case, images, labels) if is_agreement else worth(case, images, labels, test))


if __name__ == "__main__":
    main()
