"""How long the accelerator model takes: one network, and the whole grid, cold; and whether runs repeat to the byte."""

import hashlib
import os
import subprocess
import sys
import time

GRID_SECONDS = 10.0
NETWORK_SECONDS = 1.0
GRID = """
import json, sys
from adagp.accelerator import CNNS, DATAFLOWS, IMAGE_SETS, Machine, network, paper_schedule, simulate
found = {}
for dataflow in DATAFLOWS:
    for data in IMAGE_SETS:
        for model in CNNS:
            runs = simulate(network(model, data, 128), *paper_schedule(90), Machine(dataflow=dataflow))
            found[f"{model} {data} {dataflow}"] = {
                design.value: [run.cycles, run.dram_words, run.buffer_words, run.layer_cycles()]
                for design, run in runs.items()
            }
assert len(found) == 13 * 3 * 4
json.dump(found, sys.stdout)
"""
NETWORK = ["-m", "adagp", "simulate", "--model", "vgg13", "--data", "cifar10", "--json"]


def timed(arguments: list[str]) -> tuple[float, float, bytes]:
    """Wall and processor seconds of a new process on one core, and what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    before, start = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=environment)
    wall, after = time.perf_counter() - start, os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, busy, done.stdout


def main() -> int:
    print("the accelerator model, new processes on one core")
    held = True
    for name, arguments, budget in (
        ("adagp simulate --model vgg13 --data cifar10", NETWORK, NETWORK_SECONDS),
        ("13 CNNs x 3 data sets x 4 dataflows x 4 designs", ["-c", GRID], GRID_SECONDS),
    ):
        runs = [timed(arguments) for _ in range(2)]
        wall = min(run[0] for run in runs)
        same = runs[0][2] == runs[1][2]
        good = wall <= budget and same
        held &= good
        digest = hashlib.sha256(runs[0][2]).hexdigest()[:12]
        print(
            f"  {name}: {wall:.2f} s (processor {min(run[1] for run in runs):.2f} s), budget {budget:g} s, "
            f"bytes {'repeat' if same else 'DIFFER'} ({digest}): {'ok' if good else 'OVER'}"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
