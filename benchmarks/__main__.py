"""Time and memory of each kind of batch, side by side in one run: `python -m benchmarks`.

For each network: a bare `no_grad` forward in training mode, a GP batch, a plain BP batch, a BP batch with the
predictor learning, and a coarse batch: backpropagation on images of half the size. They take turns in a new random
order each round, so that other load on the machine falls on all of them. Ratios are taken within a round, where the
machine is the same for all, and the median round counts. The last column is what the paper's schedule over 90 epochs
then computes to in wall-clock time, round by round, and where the median of many more rounds would lie in 95 of 100
such runs.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from math import ceil, floor, sqrt
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, coarse, models, schedules
from adagp.measure import peak_bytes
from adagp.training.environment import describe

NETWORKS = ("resnet20", "vgg13", "mobilenet_v2")
LAYOUTS = ("channels-last", "contiguous")
"""Of images and weights; the first is the one that `adagp train` uses, and quicker for these networks."""
GP_BUDGET, BP_BUDGET, COARSE_BUDGET, MEMORY_BUDGET, SPEED_UP_GOAL = 1.10, 1.05, 0.32, 1.10, 1.40


# Before the clock starts: enough true gradients that the predictor has something to say, and trusts itself to.
WARMUP_BATCHES = 4
PLANS = {
    "BP": Plan(Phase.BP, "backprop"),
    "GP": Plan(Phase.GP, "predicted"),
    "coarse": Plan(Phase.BP, "backprop", scale=0.5),
}


class Bench:
    """One network, one optimizer and one input for every kind of batch.

    Twins would differ by more than what is measured: where their memory lies moves the same batch by up to 4 %. In the
    kinds without `adagp` its hooks are there, but return at once.
    """

    def __init__(self, name: str, batch_size: int, channels_last: bool, predictor: str) -> None:
        torch.manual_seed(0)
        self.images = torch.randn(batch_size, 3, 32, 32)
        self.labels = torch.randint(0, 10, (batch_size,))
        self.model = models.build(name)
        if channels_last:
            self.images = self.images.to(memory_format=torch.channels_last)
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self._plan = PLANS["BP"]
        schedule = schedules.from_function(lambda step: self._plan, ("backprop", "predicted", "skip"))
        self.gp = AdaGP(self.model, self.optimizer, schedule, predictor)
        self.kinds: dict[str, Callable[[], Any]] = {
            "forward": self._forward,
            "GP": partial(self._step, "GP"),
            "BP plain": self._plain,
            "BP": partial(self._step, "BP"),
            "coarse": partial(self._step, "coarse"),
        }

    def _loss(self, scale: float) -> Tensor:
        return nn.functional.cross_entropy(self.model(coarse.images(self.images, scale)), self.labels)

    def _forward(self) -> None:
        with torch.no_grad():
            self._loss(1)

    def _plain(self) -> None:
        self._loss(1).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _step(self, kind: str) -> None:
        self._plan = PLANS[kind]
        self.gp.step(self._loss)

    def measure(self, rounds: int) -> dict[str, Any]:
        """Median seconds of each kind, median ratios of rounds, and peak bytes of one more batch each."""
        for _ in range(WARMUP_BATCHES):
            self._step("BP")
        for work in self.kinds.values():
            work()
        found: list[dict[str, float]] = []
        for turn in range(rounds):
            if turn == 1:
                print(f"  {rounds} rounds of about {sum(found[0].values()):.1f} s", file=sys.stderr)
            seconds = {}
            # A new order every round: what ran before leaves its mark on caches and on the allocator.
            for kind in random.Random(turn).sample(list(self.kinds), len(self.kinds)):
                start = perf_counter()
                self.kinds[kind]()
                seconds[kind] = perf_counter() - start
            found.append(seconds)
        counts = self.gp.counts()
        peak = {kind: peak_bytes(work, torch.device("cpu")) for kind, work in self.kinds.items()}
        gains = [speed_up(one["GP"], one["BP"], one["BP plain"]) for one in found]
        return {
            "ms": {kind: 1e3 * statistics.median(one[kind] for one in found) for kind in self.kinds},
            "gp_over_forward": statistics.median(one["GP"] / one["forward"] for one in found),
            "bp_over_plain": statistics.median(one["BP"] / one["BP plain"] for one in found),
            "coarse_over_plain": statistics.median(one["coarse"] / one["BP plain"] for one in found),
            "gp_memory_over_inference": peak["GP"] / peak["forward"],
            "predicted_share": counts.get("predicted", 0) / (counts.get("predicted", 0) + counts.get("skip", 0)),
            "peak_mb": {kind: value / 1e6 for kind, value in peak.items()},
            "speed_up_90_epochs": statistics.median(gains),
            "speed_up_interval": interval(gains),
        }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of many more such values lies, with about 95 % confidence, whatever their distribution.

    As many of `n` values as `n` fair coins show heads lie below that median: half of them, give or take two standard
    deviations of that count.
    """
    ranked, half, margin = sorted(values), len(values) / 2, 0.98 * sqrt(len(values))
    return ranked[max(floor(half - margin), 0)], ranked[min(ceil(half + margin), len(ranked)) - 1]


def speed_up(gp: float, bp: float, plain: float) -> float:
    """Plain BP's time over that of the paper's schedule, from the time of each kind of batch."""
    return plain / (gp * gp_share() + bp * (1 - gp_share()))


@cache
def gp_share(epochs: int = 90, steps_per_epoch: int = 390) -> float:
    """The share of GP batches in the paper's schedule."""
    schedule = schedules.ladder(steps_per_epoch)
    steps = epochs * steps_per_epoch
    return sum(schedule(step).phase is Phase.GP for step in range(steps)) / steps


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    header = ["network", "forward ms", "GP ms", "plain BP ms", "BP ms", "GP / forward", "BP / plain BP"]
    header += ["half-size BP / plain BP"]
    header += ["layers predicted in GP", "GP memory / inference", "speed-up, 90 epochs (95 % interval)"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, row in results.items():
        ms, (low, high) = row["ms"], row["speed_up_interval"]
        lines.append(
            f"| {name} | {ms['forward']:.0f} | {ms['GP']:.0f} | {ms['BP plain']:.0f} | {ms['BP']:.0f} "
            f"| {row['gp_over_forward']:.3f} | {row['bp_over_plain']:.3f} "
            f"| {row['coarse_over_plain']:.3f} "
            f"| {row['predicted_share']:.0%} | {row['gp_memory_over_inference']:.3f} "
            f"| {row['speed_up_90_epochs']:.3f} ({low:.2f} to {high:.2f}) |"
        )
    return "\n".join(lines)


def verdicts(results: dict[str, Any]) -> list[str]:
    """Each budget that does not hold, in words."""
    checks = (
        ("gp_over_forward", "GP batch / forward", GP_BUDGET, 1),
        ("bp_over_plain", "BP batch / plain BP", BP_BUDGET, 1),
        ("coarse_over_plain", "half-size BP batch / plain BP", COARSE_BUDGET, 1),
        ("gp_memory_over_inference", "GP memory / inference", MEMORY_BUDGET, 1),
        ("speed_up_90_epochs", "speed-up", SPEED_UP_GOAL, -1),
    )
    return [
        f"{name}: {label} is {row[key]:.3f}, the budget is {budget}"
        for name, row in results.items()
        for key, label, budget, sign in checks
        if sign * row[key] > sign * budget
    ]


def main() -> int:
    """Measure, print, and say with the exit code whether every budget holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=models.names(), help="which networks")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=60, help="interleaved repetitions, at least 6; the median counts")
    parser.add_argument(
        "--layouts",
        nargs="+",
        default=LAYOUTS[:1],
        choices=LAYOUTS,
        help="of images and weights (default: channels-last)",
    )
    parser.add_argument("--predictor", default="trusted", choices=("trusted", "paper"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    if options.rounds < 6:
        parser.error("--rounds must be at least 6: fewer do not tell where the median lies")
    results = {}
    for name, layout in product(options.networks, options.layouts):
        print(f"measuring {name}, {layout} ...", file=sys.stderr)
        bench = Bench(name, options.batch_size, layout == "channels-last", options.predictor)
        results[f"{name}, {layout}"] = bench.measure(options.rounds)
    failed = verdicts(results)
    here = describe(torch.device("cpu"))
    machine = f"{here['processor']}, {here['threads']} threads, torch {torch.__version__}, batch {options.batch_size}"
    if options.json:
        print(json.dumps({"machine": machine, "networks": results, "over_budget": failed}, indent=2))
    else:
        print(f"{machine}; medians of {options.rounds} interleaved rounds\n\n{table(results)}\n")
        print("\n".join(failed) or "every budget holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
