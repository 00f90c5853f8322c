"""What the loader costs, compared with the training it feeds: `python -m benchmarks.data`.

One batch of 128 images of 32 x 32 is loaded (shuffled, cropped, mirrored, normalised) and one ResNet-20 batch trained
by plain backpropagation, in turns, in one run; ratios are of medians. The budget: loading takes at most 5 % of it.
Decoding image files is measured as well, without a budget: threads do it while the model trains.

Coarse batches: images in memory (32 x 32) and image files (at 128 x 128) are loaded at full size, at half size, and at
full size to be averaged afterwards, in turns. Ratios are taken within a round, and the median round counts. The files
are those of Imagenette if the data root has it, else made up.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import torch
from PIL import Image
from torch import nn

from adagp import coarse, data, models
from adagp.measure import cpu_threads
from adagp.training.environment import describe

BUDGET = 0.05
SIZE = 32
FILE_SIZE = 128
FILE_BATCH = 32
AUGMENT = data.Augment(padding=4, flip=True)


def measure(batch_size: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of loading a batch and of training on it, and the one over the other."""
    batches = _batches(_in_memory(4 * batch_size), batch_size)
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


def _in_memory(count: int) -> data.Split:
    images = torch.randint(0, 256, (count, 3, SIZE, SIZE), dtype=torch.uint8)
    return data.Split(images, torch.arange(count) % 10)


def _batches(split: data.Split, batch_size: int) -> data.Batches:
    return data.Batches(split, batch_size, seed=0, train=True, mean=(0.5,) * 3, std=(0.25,) * 3, augment=AUGMENT)


@contextmanager
def _in_files(count: int) -> Iterator[tuple[str, data.Split]]:
    """The first files of Imagenette, or files of the size of its smaller versions; and what they are."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            images = data.load("imagenette").train.images
            assert isinstance(images, data.ImageFiles)
            origin, paths = "Imagenette", images.paths[:count]
        except data.MissingDataError:
            origin, paths = "noise", (_noise(Path(folder), 224, 224),) * count
        yield origin, data.Split(data.ImageFiles(paths, FILE_SIZE), torch.zeros(len(paths), dtype=torch.int64))


def _noise(folder: Path, width: int, height: int) -> Path:
    path = folder / "image.jpg"
    Image.effect_noise((width, height), 60).convert("RGB").save(path)
    return path


def coarse_loading(batches: data.Batches, rounds: int) -> dict[str, float]:
    """Median milliseconds of a batch, moved to the layout of training; and its ratios to one at full size."""
    kinds = {"full": (1.0, 1.0), "half": (0.5, 1.0), "averaged": (1.0, 0.5)}  # scales of loading and of averaging
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 1):
        for kind, (loaded, averaged) in kinds.items():
            begin = perf_counter()
            for images, _ in batches.epoch(turn, scale_of=lambda batch: loaded):  # noqa: B023
                coarse.images(images.contiguous(memory_format=torch.channels_last), averaged)
            if turn:  # the first round starts the threads and fills the file cache
                seconds[kind].append((perf_counter() - begin) / len(batches))
    found = {f"{kind}_ms": 1e3 * statistics.median(each) for kind, each in seconds.items()}
    for kind in ("half", "averaged"):
        ratios = [one / full for one, full in zip(seconds[kind], seconds["full"], strict=True)]
        found[f"{kind}_ratio"] = statistics.median(ratios)
    return found


def decoding_ms(count: int) -> float:
    """Milliseconds per JPEG of 500 x 375 pixels brought to 224 x 224 by the threads that decode."""
    with tempfile.TemporaryDirectory() as folder:
        files = data.ImageFiles((_noise(Path(folder), 500, 375),) * count, 224)
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
    parser.add_argument("--images", type=int, default=200, help="image files decoded, and in an epoch of each kind")
    parser.add_argument("--threads", type=int, default=None, help="PyTorch's own choice unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args()
    with cpu_threads(options.threads), _in_files(options.images) as (origin, files):
        here = describe(torch.device("cpu"), options.threads)
        found = measure(options.batch_size, options.rounds)
        loading = {
            "memory": coarse_loading(_batches(_in_memory(4 * options.batch_size), options.batch_size), options.rounds),
            f"{origin} files": coarse_loading(_batches(files, min(FILE_BATCH, len(files))), options.rounds),
        }
    decode_ms = decoding_ms(options.images)
    failed = over_budget(found["share"])
    machine = f"{here['processor']}, {here['threads']} threads, torch {torch.__version__}, batch {options.batch_size}"
    if options.json:
        figures = {**found, "decode_ms": decode_ms, "coarse": loading}
        print(json.dumps({"machine": machine, **figures, "over_budget": failed}, indent=2))
    else:
        print(f"{machine}; medians of {options.rounds} interleaved rounds\n")
        print(f"loading {found['load_ms']:.1f} ms, training {found['train_ms']:.0f} ms: {found['share']:.1%}")
        print(f"decoding {decode_ms:.1f} ms per image file, in threads\n")
        for place, figures in loading.items():
            print(
                f"{place}: a batch at full size {figures['full_ms']:.2f} ms, at half size {figures['half_ms']:.2f} ms"
                f" ({figures['half_ratio']:.2f}), averaged afterwards {figures['averaged_ms']:.2f} ms"
                f" ({figures['averaged_ratio']:.2f})"
            )
        print("\n".join(failed) or "the budget holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
