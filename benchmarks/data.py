"""What the loader costs, compared with the training it feeds: `python -m benchmarks.data`.

One batch of 128 images of 32 x 32 is loaded (shuffled, cropped, mirrored, normalised) and one ResNet-20 batch trained
by plain backpropagation, in turns, in one run; ratios are of medians. The budget: loading takes at most 5 % of it.
Decoding image files is measured as well, without a budget: threads do it while the model trains.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from PIL import Image
from torch import nn

from adagp import data, models
from adagp.training.environment import describe
from adagp.training.measure import cpu_threads

BUDGET = 0.05
SIZE = 32


def measure(batch_size: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of loading a batch and of training on it, and the one over the other."""
    images = torch.randint(0, 256, (4 * batch_size, 3, SIZE, SIZE), dtype=torch.uint8)
    split = data.Split(images, torch.arange(len(images)) % 10)
    augment = data.Augment(padding=4, flip=True)
    batches = data.Batches(split, batch_size, seed=0, train=True, mean=(0.5,) * 3, std=(0.25,) * 3, augment=augment)
    model = models.build("resnet20")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loading, training = [], []
    for turn in range(rounds + 1):
        epoch, index = divmod(turn, len(batches))
        if index == 0:
            iterator = batches.epoch(epoch)
        begin = perf_counter()
        pixels, labels = next(iterator)
        loaded = perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
        if turn:  # the first batch of a process pays for what is allocated once
            loading.append(loaded - begin)
            training.append(perf_counter() - loaded)
    load_ms, train_ms = (1e3 * statistics.median(seconds) for seconds in (loading, training))
    return {"load_ms": load_ms, "train_ms": train_ms, "share": load_ms / train_ms}


def decoding_ms(count: int) -> float:
    """Milliseconds per JPEG of 500 x 375 pixels brought to 224 x 224 by the threads that decode."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.jpg"
        Image.effect_noise((500, 375), 60).convert("RGB").save(path)
        files = data.ImageFiles((path,) * count, 224)
        for _ in files.read([torch.arange(1)] * 4):  # the workers start
            pass
        begin = perf_counter()
        for _ in files.read(torch.arange(count).split(16)):
            pass
        return 1e3 * (perf_counter() - begin) / count


def over_budget(share: float) -> list[str]:
    """The budget in words, if it does not hold."""
    return [f"loading takes {share:.1%} of a ResNet-20 batch, the budget is {BUDGET:.0%}"] if share > BUDGET else []


def main() -> int:
    """Measure, print, and say with the exit code whether the budget holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20, help="batches loaded and trained; the median counts")
    parser.add_argument("--images", type=int, default=200, help="image files decoded")
    parser.add_argument("--threads", type=int, default=None, help="PyTorch's own choice unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args()
    with cpu_threads(options.threads):
        here = describe(torch.device("cpu"), options.threads)
        found = measure(options.batch_size, options.rounds)
    decode_ms = decoding_ms(options.images)
    failed = over_budget(found["share"])
    machine = f"{here['processor']}, {here['threads']} threads, torch {torch.__version__}, batch {options.batch_size}"
    if options.json:
        print(json.dumps({"machine": machine, **found, "decode_ms": decode_ms, "over_budget": failed}, indent=2))
    else:
        print(f"{machine}; medians of {options.rounds} interleaved rounds\n")
        print(f"loading {found['load_ms']:.1f} ms, training {found['train_ms']:.0f} ms: {found['share']:.1%}")
        print(f"decoding {decode_ms:.1f} ms per image file, in threads\n")
        print("\n".join(failed) or "the budget holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
