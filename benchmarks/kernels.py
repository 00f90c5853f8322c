"""The weight gradient of one convolution, dense and by `topk` with k = 1: `python -m benchmarks.kernels`.

It measures what `adagp reproduce approximation-kernel` prints, and checks it against the goal: faster on each of the
eight shapes of the paper's table 1, and three times as fast on six of them, in each layout.

It names the vector instructions of both sides. `CXX="c++ -mno-avx512f"` shows what a processor without AVX-512 would
make of our side, and `ONEDNN_MAX_CPU_ISA=AVX2` of torch's.
"""

import argparse
import json
import os
import sys

import torch

from adagp.kernels import topk_backends
from adagp.kernels.build import instruction_set
from adagp.measure import cpu_threads
from adagp.report import to_markdown
from adagp.reproduce.topk_kernel import BATCH_SIZE, LAYOUTS, kernel_table, measure_table, shortfalls
from adagp.training.environment import describe


def main() -> int:
    """Measure, print, and say with the exit code whether the goal holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved repetitions; the median counts")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS, help="of every tensor")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--threads", type=int, default=None, help="PyTorch's own choice unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    with cpu_threads(options.threads):
        here = describe(torch.device("cpu"), options.threads)
        timings = measure_table(
            options.rounds,
            options.layouts,
            lambda message: print(message, file=sys.stderr),
            batch_size=options.batch_size,
        )
    missing = shortfalls(timings)
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", torch.backends.cpu.get_cpu_capability())
    machine = (
        f"{here['processor']}, {here['threads']} threads, torch {torch.__version__}; topk compiled for "
        f"{instruction_set()}, dense for {limit}"
    )
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
        kernels = {name: reason or "available" for name, reason in topk_backends().items()}
        found = {"machine": f"{machine}, batch {options.batch_size}", "kernels": kernels, "shapes": rows}
        print(json.dumps({**found, "missing": missing}, indent=2))
    else:
        print(to_markdown(kernel_table(timings, machine, batch_size=options.batch_size)))
        print("\n".join(missing) or "the goal holds: faster on every shape, at least 3 x on six of eight")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
