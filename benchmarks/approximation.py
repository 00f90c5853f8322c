"""What approximating saves, side by side in one run: `python -m benchmarks.approximation`.

For each network these batches take turns: plain BP; an exact batch through `AdaGP`; a batch under `zero`, `random`
and `topk` on schedule 1 (every fourth convolution from the second) and 3 (every convolution); and an exact batch right
after a mixed one, which shows what switching costs. In the same rounds the weight-gradient convolutions that the
schedule skips are timed alone. `zero` should save at least 70 % of what they cost.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, models, schedules
from adagp.training.environment import describe

NETWORKS = ("resnet20", "vgg13")
SCHEDULES = {"1": "every fourth convolution from the second", "3": "every convolution"}
SHARE_GOAL = 0.70
SWITCH_LIMIT = 1.03


class Bench:
    """One network and the batches that take turns on it, each on a twin with the same weights."""

    def __init__(self, name: str, batch_size: int, channels_last: bool) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self._name, self._layout = name, layout
        self.images = torch.randn(batch_size, 3, 32, 32).contiguous(memory_format=layout)
        self.labels = torch.randint(0, 10, (batch_size,))
        self.layers = schedules.layer_names(models.build(name), "Conv")
        self.kinds: dict[str, Callable[[], Any]] = {"plain": self._plain(), "exact": self._under({})}
        for schedule in SCHEDULES:
            for source in ("zero", "random", "topk"):
                self.kinds[f"{source} {schedule}"] = self._under(self._mixed(schedule, source))
        self.kinds["exact after zero 3"] = self._switching(self._mixed("3", "zero"))
        skipped = self._weight_gradients()
        for schedule in SCHEDULES:
            chosen = [skipped[layer] for layer in self._mixed(schedule, "zero")]
            self.kinds[f"skipped {schedule}"] = lambda chosen=chosen: [work() for work in chosen]

    def _mixed(self, schedule: str, source: str) -> dict[str, str]:
        """The layers concerned in the batch of a cycle that is not exact."""
        return dict(schedules.approximation(schedule, self.layers, source)(3).overrides)

    def _model(self) -> nn.Module:
        torch.manual_seed(0)
        model = models.build(self._name)
        return model.to(memory_format=self._layout)  # type: ignore[call-overload, no-any-return]

    def _loss(self, model: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(model(self.images), self.labels)

    def _plain(self) -> Callable[[], Any]:
        model = self._model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            self._loss(model).backward()
            optimizer.step()

        return step

    def _engine(self, plan: Callable[[int], Plan]) -> tuple[nn.Module, AdaGP]:
        model = self._model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        return model, AdaGP(model, optimizer, schedules.from_function(plan), None)

    def _under(self, overrides: dict[str, str]) -> Callable[[], Any]:
        plan = Plan(Phase.BP, "backprop", overrides)
        model, gp = self._engine(lambda step: plan)
        return lambda: gp.step(lambda: self._loss(model))

    def _switching(self, overrides: dict[str, str]) -> Callable[[], Any]:
        """Returns the seconds of the exact batch alone, as the mixed one before it is not what is asked."""
        plans = (Plan(Phase.BP, "backprop", overrides), Plan(Phase.BP, "backprop"))
        model, gp = self._engine(lambda step: plans[step % 2])

        def both() -> float:
            gp.step(lambda: self._loss(model))
            start = perf_counter()
            gp.step(lambda: self._loss(model))
            return perf_counter() - start

        return both

    def _weight_gradients(self) -> dict[str, Callable[[], Any]]:
        """The weight-gradient convolution of every layer alone, on tensors of the sizes it has in the network."""
        model = self._model()
        found: dict[str, Callable[[], Any]] = {}

        def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                assert isinstance(module, nn.Conv2d)
                x, error = inputs[0].detach().clone(), torch.randn_like(output)
                options = (module.stride, module.padding, module.dilation, False, [0, 0], module.groups)
                found[name] = lambda: torch.ops.aten.convolution_backward(
                    error, x, module.weight.detach(), None, *options, [False, True, False]
                )

            return hook

        hooks = [model.get_submodule(name).register_forward_hook(note(name)) for name in self.layers]
        with torch.no_grad():
            self._loss(model)
        for hook in hooks:
            hook.remove()
        return found

    def measure(self, rounds: int) -> dict[str, Any]:
        """Median milliseconds of each kind, and what follows from them."""
        seconds: dict[str, list[float]] = {kind: [] for kind in self.kinds}
        for turn in range(-1, rounds):  # the first warms up
            for kind in random.Random(turn).sample(list(self.kinds), len(self.kinds)):
                start = perf_counter()
                inner = self.kinds[kind]()
                taken = perf_counter() - start
                if turn >= 0:
                    seconds[kind].append(inner if isinstance(inner, float) else taken)
        ms = {kind: 1e3 * statistics.median(values) for kind, values in seconds.items()}
        return {
            "ms": ms,
            "saved_share": {
                schedule: (ms["plain"] - ms[f"zero {schedule}"]) / ms[f"skipped {schedule}"] for schedule in SCHEDULES
            },
            "switch": ms["exact after zero 3"] / ms["exact"],
        }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    header = ["network", "schedule", "plain BP ms", "skipped convolutions ms", "`zero` ms", "saved of skipped"]
    header += ["`random` ms", "`topk` ms"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, row in results.items():
        ms = row["ms"]
        lines += [
            f"| {name} | {schedule} | {ms['plain']:.0f} | {ms[f'skipped {schedule}']:.0f} "
            f"| {ms[f'zero {schedule}']:.0f} | {100 * row['saved_share'][schedule]:.0f} % "
            f"| {ms[f'random {schedule}']:.0f} | {ms[f'topk {schedule}']:.0f} |"
            for schedule in SCHEDULES
        ]
    switches = [f"{name}: {row['switch']:.3f}" for name, row in results.items()]
    return "\n".join(
        [*lines, "", f"exact batch after a mixed one / exact batch after exact ones: {', '.join(switches)}"]
    )


def verdicts(results: dict[str, Any]) -> list[str]:
    """Each goal that is missed, in words."""
    missed = [
        f"{name}, schedule {schedule}: zero saves {100 * share:.0f} % of the skipped convolutions, the goal is 70 %"
        for name, row in results.items()
        for schedule, share in row["saved_share"].items()
        if share < SHARE_GOAL
    ]
    return missed + [
        f"{name}: an exact batch after a mixed one takes {row['switch']:.3f} x, the limit is {SWITCH_LIMIT}"
        for name, row in results.items()
        if row["switch"] > SWITCH_LIMIT
    ]


def main() -> int:
    """Measure, print, and say with the exit code whether every goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=models.names(), help="which networks")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=60, help="interleaved repetitions; the median counts")
    parser.add_argument("--contiguous", action="store_true", help="in place of channels-last")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    results = {}
    for name in options.networks:
        print(f"measuring {name} ...", file=sys.stderr)
        results[name] = Bench(name, options.batch_size, not options.contiguous).measure(options.rounds)
    missed = verdicts(results)
    here = describe(torch.device("cpu"))
    layout = "contiguous" if options.contiguous else "channels-last"
    machine = f"{here['processor']}, {here['threads']} threads, torch {torch.__version__}, batch {options.batch_size}"
    if options.json:
        print(json.dumps({"machine": machine, "layout": layout, "networks": results, "missed": missed}, indent=2))
    else:
        print(f"{machine}, {layout}; medians of {options.rounds} interleaved rounds\n\n{table(results)}\n")
        print("\n".join(missed) or "every goal is reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
