"""Small data sets of every task, made by the tests."""

import random
from pathlib import Path

import torch

from adagp.data import BoxedImage, Detection, Translation
from adagp.data.translation import Pair
from tests.data.making import picture

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "sechs", "six": "neun"}


def counting(count: int, seed: int) -> tuple[Pair, ...]:
    """Numbers in words, and the same in something like German."""
    draw = random.Random(seed)
    sources = [draw.choices(list(WORDS), k=draw.randint(2, 5)) for _ in range(count)]
    return tuple((" ".join(words), " ".join(WORDS[word] for word in words)) for words in sources)


def toy_text(train: int = 96) -> Translation:
    return Translation("toy", "en", "de", counting(train, 0), (), counting(24, 1))


def toy_objects(folder: Path) -> Detection:
    """Four images to train on and two to test on; the second of each image's boxes is difficult."""
    images = []
    for seed in range(6):
        path = folder / f"{seed}.png"
        path.write_bytes(picture(48, 32, seed))
        images.append(
            BoxedImage(
                path,
                torch.tensor([[4.0, 4.0, 30.0, 28.0], [30.0, 2.0, 46.0, 20.0]]),
                torch.tensor([seed % 3, 2]),
                torch.tensor([False, True]),
            )
        )
    return Detection("toy-objects", ("a", "b", "c"), tuple(images[:4]), tuple(images[4:]))
