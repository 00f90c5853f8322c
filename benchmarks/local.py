"""Local losses against plain backpropagation at equal epochs: `python -m benchmarks.local RUNS.json`.

ResNet-8 and ResNet-20 on CIFAR-10 (12,800 images, 4,000 for the test), 8 epochs, batch 128, SGD with Nesterov momentum
0.9, weight decay 5e-4, a tenth of warm-up, cosine decay. Parts keep equal memory. RUNS.json holds the finished runs, so
that a study continues where it was stopped; `--table` prints what is there. Data: the folder named by ADAGP_DATA.
`--memory` measures peak memory and time of a batch instead, side by side.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import cos, pi
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from adagp import AdaGP, data, models, schedules
from adagp.local import cross_entropy
from adagp.measure import peak_bytes
from adagp.models.resnet_cifar import SmallResNet
from adagp.sources import Local
from benchmarks.coarse import BATCH, TEST, TRAIN, load
from benchmarks.runs import Runs

EPOCHS = 8
BLOCKS = {"resnet8": 1, "resnet20": 3}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model: The network.
        parts: The number of parts; 1 is plain backpropagation.
        head: The kind of the heads.
        lr: The learning rate at its peak.
        seed: Of the weights and the order.
    """

    model: str
    parts: int
    lr: float
    head: str = "dgl"
    seed: int = 0


def cases() -> Iterator[Case]:
    """The study, in order of weight."""
    for seed, parts in product((0, 1, 2), (1, 2, 3)):
        yield Case("resnet8", parts, 0.8, seed=seed)
    for parts in (1, 2, 3):
        yield Case("resnet8", parts, 0.4)
    for parts in (1, 2, 3):
        yield Case("resnet20", parts, 0.8)
    yield Case("resnet8", 2, 0.8, head="predsim")
    for seed, parts in product((1, 2), (1, 2, 3)):
        yield Case("resnet20", parts, 0.8, seed=seed)


def attach(case: Case, model: nn.Module) -> AdaGP:
    """The model under the case's source."""
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    if case.parts == 1:
        return AdaGP(model, optimizer, schedules.always_backprop(), None)
    sources = {"local": Local(parts=case.parts, head=case.head, seed=case.seed)}
    return AdaGP(model, optimizer, schedules.always_local(), None, sources=sources)


def step(gp: AdaGP, model: nn.Module, x: Tensor, y: Tensor, is_local: bool) -> Tensor:
    """One batch; the loss of the model itself."""
    loss = gp.step(lambda: nn.functional.cross_entropy(model(x), y), target=y if is_local else None)
    assert isinstance(loss, Tensor)
    return loss


def build(case: Case) -> nn.Module:
    """The network, in channels-last order."""
    model: nn.Module = SmallResNet(BLOCKS[case.model], num_classes=10, in_channels=3)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(case: Case, images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor]) -> dict[str, object]:
    """Accuracy in per cent, CPU seconds and peak bytes of one case."""
    torch.manual_seed(case.seed)
    model = build(case)
    gp = attach(case, model)
    augment = data.Augment(padding=4, flip=True)
    generator = torch.Generator().manual_seed(case.seed)
    steps = EPOCHS * TRAIN // BATCH
    start, losses = process_time(), []
    order = torch.empty(0, dtype=torch.long)
    for index in range(steps):
        progress = index / steps
        factor = progress / 0.1 if progress < 0.1 else (1 + cos(pi * (progress - 0.1) / 0.9)) / 2
        for group in gp.optimizer.param_groups:
            group["lr"] = case.lr * factor
        if len(order) < BATCH:
            order = torch.randperm(TRAIN, generator=generator)
        picked, order = order[:BATCH], order[BATCH:]
        x = augment(images[picked], generator).contiguous(memory_format=torch.channels_last)
        losses.append(float(step(gp, model, x, labels[picked], case.parts > 1)))
    seconds = process_time() - start
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(test[0].split(500), test[1].split(500), strict=True)
        )
    source = gp.sources.get("local")
    return {
        "accuracy": 100 * right / TEST,
        "seconds": seconds,
        "peak_bytes": peak(case, images[:BATCH], labels[:BATCH]),
        "loss": sum(losses[-20:]) / 20,
        "cuts": list(source.cuts or ()) if isinstance(source, Local) else [],
    }


def peak(case: Case, x: Tensor, y: Tensor) -> int:
    """Peak bytes of a batch, above what the model, its gradients' absence and the optimizer hold."""
    model = build(case)
    gp = attach(case, model)
    x = x.contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        step(gp, model, x, y, case.parts > 1)
    return peak_bytes(lambda: step(gp, model, x, y, case.parts > 1), torch.device("cpu"))


MEMORY = {"resnet20": (128, 3, 32, 32), "vgg13": (64, 3, 32, 32), "mobilenet_v2": (64, 3, 32, 32), "gpt": (16, 128)}
"""The networks whose memory is measured, with their input's shape."""
ROUNDS = 9


@dataclass(frozen=True)
class Memory:
    """A network whose memory is measured; its cases stand in the same file as those of trainings."""

    memory: str


def memory(name: str) -> dict[str, object]:
    """Peak bytes and median seconds of a batch, in one, two, three and four parts, taken in turn."""
    shape = MEMORY[name]
    if name == "gpt":
        x = torch.randint(4000, shape)
        y = torch.randint(4000, shape)
    else:
        x, y = torch.randn(shape).contiguous(memory_format=torch.channels_last), torch.randint(10, shape[:1])
    works = {parts: _work(name, parts, x, y) for parts in (1, 2, 3, 4)}
    for work in works.values():
        work()
    peaks = {parts: peak_bytes(work, torch.device("cpu")) for parts, work in works.items()}
    times: dict[int, list[float]] = {parts: [] for parts in works}
    for _ in range(ROUNDS):
        for parts, work in works.items():
            start = process_time()
            work()
            times[parts].append(process_time() - start)
    seconds = {parts: median(taken) for parts, taken in times.items()}
    return {"shape": list(shape), "peak_bytes": _named(peaks), "seconds": _named(seconds)}


def _named(by_parts: Mapping[int, float]) -> dict[str, float]:
    return {str(parts): value for parts, value in by_parts.items()}


def _work(name: str, parts: int, x: Tensor, y: Tensor) -> Callable[[], object]:
    torch.manual_seed(0)
    model = models.build(name, **({} if name == "gpt" else {"num_classes": 10}))
    if name != "gpt":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    local, plain = {"local": Local(parts=parts)}, schedules.always_backprop()
    gp = (
        AdaGP(model, optimizer, plain, None)
        if parts == 1
        else AdaGP(model, optimizer, schedules.always_local(), None, sources=local)
    )
    return lambda: gp.step(lambda: cross_entropy(model(x), y), target=None if parts == 1 else y)


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--memory", action="store_true", help="measure memory and time of a batch instead")
    options = parser.parse_args()
    runs = Runs(options.runs)
    torch.set_num_threads(1)
    if options.memory:
        for name in MEMORY:
            if runs.get(Memory(name)) is None:
                runs.add(Memory(name), memory(name))
        return
    if options.table:
        for case in cases():
            if found := runs.get(case):
                print(
                    f"{case.model:9} parts {case.parts} {case.head:8} lr {case.lr:<4} seed {case.seed} "
                    f"{found['accuracy']:.1f} % {found['seconds']:.0f} s {found['peak_bytes'] / 1e6:.0f} MB"
                )
        return
    images, labels, test = load()
    for case in cases():
        if runs.get(case) is None:
            runs.add(case, train(case, images, labels, test))


if __name__ == "__main__":
    main()
