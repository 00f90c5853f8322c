"""Peak memory and time of a batch in local parts, beside plain backpropagation: `python -m benchmarks.local`.

One to four parts take turns in one process, on one thread; the median of the CPU times counts. Results are added to
`benchmarks/results/local.json`, network by network, and are not measured again. `benchmarks.equal_epochs` trains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import process_time

import torch
from torch import Tensor

from adagp import AdaGP, models, schedules
from adagp.local import cross_entropy
from adagp.measure import peak_bytes
from adagp.sources import Local
from benchmarks.runs import Runs
from benchmarks.study import RESULTS

MEMORY = {"resnet20": (128, 3, 32, 32), "vgg13": (64, 3, 32, 32), "mobilenet_v2": (64, 3, 32, 32), "gpt": (16, 128)}
"""The networks whose memory is measured, with their input's shape."""
ROUNDS = 9


@dataclass(frozen=True)
class Memory:
    """A network whose memory is measured."""

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
    """Measure what is missing."""
    torch.set_num_threads(1)
    runs = Runs(RESULTS / "local.json")
    for name in MEMORY:
        if runs.get(Memory(name)) is None:
            runs.add(Memory(name), memory(name))


if __name__ == "__main__":
    main()
