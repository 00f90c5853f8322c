"""What `sampled` costs and adds: `python -m benchmarks.sampled kernels|layers|memory`.

`kernels`: the weight gradient of single layers, exact and from a quarter of the positions, on random tensors in turn.
The shortest of some rounds counts, because other work on the machine only ever adds time. The goal is twice the speed
for layers of at least 128 input and output channels. The exit code says whether it holds.

`layers`: for each layer of a network, the same seconds, and the variance that sampling adds over that between batches,
after some batches of training on real data; then a whole batch as `economical` chose, beside a plain one.

`memory`: peak bytes and CPU seconds of a batch, plain, with activation checkpointing, and with `keep="rows"`.

Results are files in benchmarks/results. Data: the folder named by ADAGP_DATA.
"""

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adagp import AdaGP, Phase, Plan, data, schedules
from adagp.advice.checkpointing import repeated_blocks
from adagp.advice.user_file import Training
from adagp.files import write_json
from adagp.kernels import sampled_weight_grad
from adagp.kernels.build import instruction_set
from adagp.measure import peak_bytes
from adagp.schedules.trials import best, findings
from adagp.sources import Sampled, Source
from adagp.training.advising import recipe_training
from adagp.training.environment import describe
from adagp.training.recipe_files import load_preset

NETWORKS = {
    "layers": ("vgg13", "resnet20", "resnet50", "transformer"),
    "memory": ("transformer", "transformer-256", "transformer-2048", "gpt", "resnet50"),
}
RESULTS = Path(__file__).with_name("results")
CPU = torch.device("cpu")
RATES = (0.1, 0.25, 0.5)
GOAL_RATE, GOAL_SPEED_UP, GOAL_CHANNELS = 0.25, 2.0, 128
LARGE_SHARE = 0.8
"""Tables show the layers that together take this share of the weight gradients' time, the slowest first."""
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "vgg13": ("cifar10-vgg13-tuned", {"batch_size": 64}),
    "resnet20": ("cifar10-resnet20-tuned", {"batch_size": 128}),
    "resnet50": ("cifar10-resnet50-tuned", {"batch_size": 32}),
    "transformer": ("multi30k-transformer-paper", {"batch_size": 64, "vocabulary": 4000}),
    "transformer-256": ("multi30k-transformer-paper", {"batch_size": 256, "vocabulary": 4000}),
    "transformer-2048": (
        "multi30k-transformer-paper",
        {"batch_size": 64, "vocabulary": 4000, "sizes": {"hidden": 2048}},
    ),
    "gpt": ("multi30k-gpt-tuned", {"sizes": {"context": 128, "layers": 4, "width": 256, "heads": 8}}),
}


def build(name: str, channels_last: bool = True) -> tuple[Training, list[Any]]:
    """A training on real data, and some of its batches."""
    preset, changes = TRAININGS[name]
    recipe = load_preset(preset).recipe.replace(**changes, train_limit=4_000, test_limit=100)
    training = recipe_training(recipe, data.load_any(recipe.data), CPU)
    if channels_last:
        for module in training.model.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = [one for one, _ in zip(training.loader, range(40), strict=False)]
    if channels_last and isinstance(batches[0], tuple) and batches[0][0].dim() == 4:
        batches = [(batch[0].contiguous(memory_format=torch.channels_last), *batch[1:]) for batch in batches]
    return training, batches


def closure(training: Training, batch: Any) -> Tensor:
    """The loss of a batch at full size; image models take a scale too."""
    takes_scale = training.closure.__code__.co_argcount > 1
    loss: Tensor = training.closure(batch, 1.0) if takes_scale else training.closure(batch)
    return loss


# ---- kernels


class Shape(NamedTuple):
    """A layer: a square convolution that keeps the size of its images, or a Linear layer with `size` tokens."""

    network: str
    inputs: int
    outputs: int
    size: int
    kernel: int
    batch: int

    @property
    def is_large(self) -> bool:
        """Whether the goal counts for it."""
        return min(self.inputs, self.outputs) >= GOAL_CHANNELS


SHAPES = (
    *(
        Shape("VGG-13", inputs, outputs, size, 3, 64)
        for inputs, outputs, size in (
            (64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4),
            (512, 512, 2),
        )
    ),
    *(Shape("ResNet-50", width, width, size, 3, 8) for width, size in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(
        Shape("ResNet-50", inputs, outputs, size, 1, 8)
        for inputs, outputs, size in (
            (256, 64, 56), (64, 256, 56), (512, 128, 28), (128, 512, 28), (1024, 256, 14), (256, 1024, 14),
            (2048, 512, 7), (512, 2048, 7),
        )
    ),
    *(Shape("Transformer", inputs, outputs, 30, 0, 64) for inputs, outputs in ((512, 512), (512, 2048), (2048, 512))),
)  # fmt: skip
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def time_shape(shape: Shape, layout: str, rounds: int) -> tuple[float, float]:
    """The shortest CPU seconds of the exact and of the sampled weight gradient, in turn."""
    generator = torch.Generator().manual_seed(0)
    if not shape.kernel:
        x = torch.randn(shape.batch, shape.size, shape.inputs, generator=generator)
        grad = torch.randn(shape.batch, shape.size, shape.outputs, generator=generator)
        image, grad_image = (one.transpose(1, 2)[..., None] for one in (x, grad))
        weight = torch.empty(shape.outputs, shape.inputs, 1, 1)

        def exact() -> Tensor:
            return grad.flatten(0, 1).t() @ x.flatten(0, 1)
    else:
        sides = (shape.size, shape.size)
        image = torch.randn(shape.batch, shape.inputs, *sides, generator=generator).relu_()
        grad_image = torch.randn(shape.batch, shape.outputs, *sides, generator=generator)
        image, grad_image = (one.to(memory_format=LAYOUTS[layout]) for one in (image, grad_image))
        weight = torch.empty(shape.outputs, shape.inputs, shape.kernel, shape.kernel)
        weight = weight.to(memory_format=LAYOUTS[layout])
        pads = [shape.kernel // 2] * 2

        def exact() -> Tensor:
            found: Tensor = torch.ops.aten.convolution_backward(
                grad_image, image, weight, None, [1, 1], pads, [1, 1], False, [0, 0], 1, [False, True, False]
            )[1]
            return found

    def sampled() -> Tensor:
        return sampled_weight_grad(image, grad_image, weight.shape, padding=shape.kernel // 2, rate=GOAL_RATE)

    seconds: dict[Callable[[], Tensor], list[float]] = {exact: [], sampled: []}
    for _ in range(rounds + 1):  # the first warms up, and is never the shortest
        for work, found in seconds.items():
            begin = process_time()  # of one thread, so that waiting for others does not count
            work()
            found.append(process_time() - begin)
    return min(seconds[exact]), min(seconds[sampled])


def kernels(rounds: int) -> int:
    """Print the table of single layers; 1 where the goal does not hold."""
    rows, missing = [], []
    print(
        "| network | channels, size, kernel | layout | exact ms | sampled ms | speed-up |", "|---" * 6 + "|", sep="\n"
    )
    for shape in SHAPES:
        for layout in LAYOUTS if shape.kernel else ("tokens",):
            exact, sampled = time_shape(shape, layout, rounds)
            about = f"{shape.inputs} -> {shape.outputs}, {shape.size}"
            about += f" x {shape.size}, {shape.kernel} x {shape.kernel}" if shape.kernel else f" x {shape.batch} tokens"
            print(
                f"| {shape.network} | {about} | {layout} | {1e3 * exact:.1f} | {1e3 * sampled:.1f} | "
                f"{exact / sampled:.1f} |",
                flush=True,
            )
            rows.append({**shape._asdict(), "layout": layout, "exact_seconds": exact, "sampled_seconds": sampled})
            if shape.is_large and exact < GOAL_SPEED_UP * sampled:
                missing.append(f"{shape.network}, {about}, {layout}: {exact / sampled:.2f} x")
    here = {**describe(CPU), "instructions": instruction_set()}
    write_json(
        RESULTS / f"sampled-kernels-{instruction_set()}.json", {"environment": here, "rounds": rounds, "rows": rows}
    )
    print("", f"compiled for {instruction_set()}", *missing, sep="\n")
    return 1 if missing else 0


# ---- layers


def measure_layers(name: str, warmup: int, measured: int) -> dict[str, Any]:
    """Train a little, then try every rate on every layer in some batches."""
    training, batches = build(name)
    layers = schedules.layer_names(training.model, "Conv[12]d|Linear")
    schedule = schedules.economical(layers, RATES, measured_batches=measured, first=warmup, every=10**9)
    gp = AdaGP(training.model, training.optimizer, schedule, None)
    rates = [group["lr"] for group in training.optimizer.param_groups]
    for step in range(warmup + measured):
        for group, rate in zip(training.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / warmup)
        gp.step(lambda step=step: closure(training, batches[step % len(batches)]))  # type: ignore[misc]
        print(f"{name}: batch {step + 1} of {warmup + measured}", file=sys.stderr)
    gp.remove()
    trials, rows = schedule.state_dict()["trials"], []
    for layer in layers:
        found, module = findings([schedules.Trial(**one) for one in trials[layer]]), training.model.get_submodule(layer)
        chosen = best(found)
        rows.append(
            {
                "layer": layer,
                "weight": list(module.weight.shape),  # type: ignore[union-attr, arg-type]
                "exact_ms": 1e3 * min(one["exact_seconds"] for one in trials[layer]),
                "sampled_ms": {rate: 1e3 * min(one["seconds"][rate] for one in trials[layer]) for rate in RATES},
                "added_variance": {one.rate: one.added_variance for one in found},
                "break_even": {one.rate: one.most_added_variance for one in found},
                "chosen": None if chosen is None else chosen.rate,
            }
        )
    return {
        "environment": {**describe(CPU), "instructions": instruction_set()},
        "warmup": warmup,
        "batches": measured,
        "layers": rows,
        "batch_seconds": time_batches(training, batches, schedule.rates, measured),
    }


def time_batches(
    training: Training, batches: Sequence[Any], chosen: Mapping[str, float], rounds: int
) -> dict[str, float]:
    """Median CPU seconds of a plain batch and of one with the chosen rates, in turn."""
    plan = Plan(Phase.BP, "backprop", dict.fromkeys(chosen, "sampled"), rates=dict(chosen))
    plans = {"plain": Plan(Phase.BP, "backprop"), "economical": plan}
    now = plans["plain"]
    schedule = schedules.from_function(lambda step: now, ["backprop", "sampled"])
    gp = AdaGP(training.model, training.optimizer, schedule, None)
    seconds: dict[str, list[float]] = {way: [] for way in plans}
    for turn in range(rounds + 1):
        for way in random.Random(turn).sample(list(plans), len(plans)):
            now = plans[way]
            begin = process_time()
            gp.step(lambda turn=turn: closure(training, batches[turn % len(batches)]))  # type: ignore[misc]
            if turn:
                seconds[way].append(process_time() - begin)
    gp.remove()
    return {way: median(found) for way, found in seconds.items()}


def large(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The layers for which the goal counts."""
    ordered, total, taken = sorted(rows, key=lambda row: -row["exact_ms"]), sum(row["exact_ms"] for row in rows), 0.0
    found = []
    for row in ordered:
        if taken >= LARGE_SHARE * total:
            break
        taken += row["exact_ms"]
        found.append(row)
    return found


def layers_table(name: str, result: dict[str, Any]) -> str:
    """The layers for which the goal counts, as Markdown, and the others as one line."""
    rows, shown = result["layers"], large(result["layers"])
    lines = [
        f"{name}: layers that take {100 * LARGE_SHARE:.0f} % of the time of weight gradients",
        "",
        "| layer | weight | exact ms | sampled ms at " + " | ".join(f"{rate:g}" for rate in RATES)
        + " | speed-up at 0.25 | added variance at " + " | ".join(f"{rate:g}" for rate in RATES) + " | economical |",
        "|---|---|" + "--:|" * (2 * len(RATES) + 2) + "---|",
    ]  # fmt: skip
    for row in [one for one in rows if one in shown]:
        times = " | ".join(f"{_of(row['sampled_ms'], rate):.1f}" for rate in RATES)
        noise = " | ".join(f"{_of(row['added_variance'], rate):.2f}" for rate in RATES)
        weight = " x ".join(map(str, row["weight"]))
        lines.append(
            f"| {row['layer']} | {weight} | {row['exact_ms']:.1f} | {times} | {_speed_up(row):.1f} | {noise} | "
            f"{'exact' if row['chosen'] is None else format(row['chosen'], 'g')} |"
        )
    sampled = sum(row["chosen"] is not None for row in rows)
    seconds = result["batch_seconds"]
    lines.append(
        f"\nOf all {len(rows)} layers {sampled} are sampled by `economical`: a batch takes "
        f"{1e3 * seconds['economical']:.0f} ms instead of {1e3 * seconds['plain']:.0f}."
    )
    return "\n".join(lines)


def _of(by_rate: dict[Any, float], rate: float) -> float:
    """JSON makes text of numbers that are keys."""
    return by_rate[rate] if rate in by_rate else by_rate[str(rate)]


def _speed_up(row: dict[str, Any]) -> float:
    return float(row["exact_ms"] / _of(row["sampled_ms"], GOAL_RATE))


# ---- memory


def measure_memory(name: str, rounds: int) -> dict[str, Any]:
    """Peak bytes above what is there before the batch, and median CPU seconds, of each way to run it in turn."""
    training, batches = build(name)
    layers = schedules.layer_names(training.model, "Conv[12]d|Linear")
    sampled = Plan(Phase.BP, "backprop", dict.fromkeys(layers, "sampled"))

    def attached(source: Source) -> Callable[[], None]:
        def run() -> None:
            schedule = schedules.from_function(lambda step: sampled, ["backprop", "sampled"])
            gp = AdaGP(training.model, training.optimizer, schedule, None, sources={"sampled": source})
            try:
                gp.step(lambda: closure(training, batches[0]))
            finally:
                gp.remove()

        return run

    def plain() -> None:
        closure(training, batches[0]).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    def checkpointed() -> None:
        blocks = repeated_blocks(training.model)
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        try:
            plain()
        finally:
            for block in blocks:
                del block.forward

    ways = {"plain": plain, "checkpointing": checkpointed}
    ways |= {f"sampled {rate:g}": attached(Sampled(rate)) for rate in (0.5, 0.25)}
    ways |= {f'sampled {rate:g}, keep="rows"': attached(Sampled(rate, keep="rows")) for rate in (0.25, 0.1)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way in random.Random(turn).sample(list(ways), len(ways)):
            begin = process_time()
            ways[way]()
            if turn:
                seconds[way].append(process_time() - begin)
    found = {way: {"peak_bytes": peak_bytes(run, CPU), "seconds": median(seconds[way])} for way, run in ways.items()}
    return {"environment": describe(CPU), "rounds": rounds, "ways": found}


def memory_table(name: str, result: dict[str, Any]) -> str:
    """Each way beside the plain one, as Markdown."""
    plain = result["ways"]["plain"]
    lines = [f"{name}", "", "| batch | peak MB | less | ms | slower |", "|---|--:|--:|--:|--:|"]
    for way, one in result["ways"].items():
        lines.append(
            f"| {way} | {one['peak_bytes'] / 1e6:.0f} | {plain['peak_bytes'] / one['peak_bytes']:.2f} x | "
            f"{1e3 * one['seconds']:.0f} | {one['seconds'] / plain['seconds']:.2f} x |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure what is asked for, print it, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kernels", "layers", "memory"])
    parser.add_argument("--networks", nargs="+", choices=list(TRAININGS), default=None)
    parser.add_argument("--warmup", type=int, default=30, help="batches of training before layers are measured")
    parser.add_argument("--rounds", type=int, default=8, help="measured batches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "kernels":
        return kernels(options.rounds)
    for name in options.networks or NETWORKS[options.what]:
        if options.what == "layers":
            result = measure_layers(name, options.warmup, options.rounds)
            print(layers_table(name, result), "\n")
        else:
            result = measure_memory(name, options.rounds)
            print(memory_table(name, result), "\n")
        write_json(RESULTS / f"sampled-{options.what}-{name}.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
