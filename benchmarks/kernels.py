"""The weight gradient of one convolution, dense and by `topk` with k = 1: `python -m benchmarks.kernels`.

The eight shapes of table 1 of the gradient-approximation paper, batch 128, side by side in one run (see
`adagp.kernels.measure`). The goal: quicker on every shape, three times so on six of the eight, in each layout.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product

import torch

from adagp.kernels import topk_backends
from adagp.kernels.measure import BATCH_SIZE, LAYOUTS, TABLE_1, Timing, measure, shortfalls
from adagp.training.environment import describe
from adagp.training.measure import cpu_threads


def table(timings: Sequence[Timing]) -> str:
    """The timings as Markdown, the paper's speed-up beside ours."""
    header = ["channels, image", "layout", "dense ms", "topk ms", "kernel", "speed-up", "paper's (GPU)"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [
        f"| {timing.shape} | {timing.layout} | {1e3 * timing.dense_seconds:.2f} | {1e3 * timing.topk_seconds:.2f} "
        f"| {timing.kernel} | {timing.speed_up:.1f} | {timing.shape.paper_speed_up} |"
        for timing in timings
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and say with the exit code whether the goal holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved repetitions; the median counts")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS, help="of every tensor")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--threads", type=int, default=None, help="PyTorch's own choice unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    timings = []
    with cpu_threads(options.threads):
        here = describe(torch.device("cpu"), options.threads)
        for layout, shape in product(options.layouts, TABLE_1):
            print(f"measuring {shape}, {layout} ...", file=sys.stderr)
            timings.append(measure(shape, options.rounds, layout, batch_size=options.batch_size))
    missing = shortfalls(timings)
    machine = f"{here['processor']}, {here['threads']} threads, torch {torch.__version__}, batch {options.batch_size}"
    kernels = {name: reason or "available" for name, reason in topk_backends().items()}
    if options.json:
        rows = [
            {
                "shape": str(timing.shape),
                "layout": timing.layout,
                "kernel": timing.kernel,
                "dense_seconds": timing.dense_seconds,
                "topk_seconds": timing.topk_seconds,
                "speed_up": timing.speed_up,
                "paper_speed_up": timing.shape.paper_speed_up,
            }
            for timing in timings
        ]
        print(json.dumps({"machine": machine, "kernels": kernels, "shapes": rows, "missing": missing}, indent=2))
    else:
        print(f"{machine}; medians of {options.rounds} interleaved rounds\n\n{table(timings)}\n")
        print("\n".join(missing) or "the goal holds: quicker on every shape, at least 3 x on six of eight")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
