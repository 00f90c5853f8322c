"""What is published of the ImageNet networks: parameters, multiply-adds, names and shapes of their state dicts.

Nothing here is read off our code. Parameters and GFLOPS (which are multiply-adds there) stand in torchvision's
documentation of each model's weights; of Inception-V4 in timm's results tables. The names and shapes follow the rules
by which torchvision (timm for Inception-V4) names its modules, and the tables of the papers.
"""

from collections.abc import Iterator

Shapes = dict[str, tuple[int, ...]]

PARAMETERS = {
    "vgg13": 133_053_736,
    "vgg16": 138_365_992,
    "vgg19": 143_678_248,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}
GIGA_MULTIPLY_ADDS = {
    "vgg13": 11.31,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
}


def _norm(name: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for key in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{key}", (channels,)
    yield f"{name}.num_batches_tracked", ()


def _linear(name: str, out: int, fan_in: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, fan_in)
    yield f"{name}.bias", (out,)


def vgg(stages: tuple[int, ...]) -> Shapes:
    found: Shapes = {}
    place, before = 0, 3
    for width, depth in zip((64, 128, 256, 512, 512), stages, strict=True):
        for _ in range(depth):
            found[f"features.{place}.weight"] = (width, before, 3, 3)
            found[f"features.{place}.bias"] = (width,)
            found.update(_norm(f"features.{place + 1}", width))
            place, before = place + 3, width  # convolution, norm, ReLU
        place += 1  # pooling
    for place, out, fan_in in ((0, 4096, 25088), (3, 4096, 4096), (6, 1000, 4096)):
        found.update(_linear(f"classifier.{place}", out, fan_in))
    return found


def resnet(stages: tuple[int, ...]) -> Shapes:
    found: Shapes = {"conv1.weight": (64, 3, 7, 7), **dict(_norm("bn1", 64)), **dict(_linear("fc", 1000, 2048))}
    before = 64
    for stage, blocks in enumerate(stages, start=1):
        width = 32 << stage
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            found[f"{name}.conv1.weight"] = (width, before, 1, 1)
            found[f"{name}.conv2.weight"] = (width, width, 3, 3)
            found[f"{name}.conv3.weight"] = (4 * width, width, 1, 1)
            for index, channels in ((1, width), (2, width), (3, 4 * width)):
                found.update(_norm(f"{name}.bn{index}", channels))
            if block == 0:
                found[f"{name}.downsample.0.weight"] = (4 * width, before, 1, 1)
                found.update(_norm(f"{name}.downsample.1", 4 * width))
            before = 4 * width
    return found


STATE_DICTS = {
    "vgg13": vgg((2, 2, 2, 2, 2)),
    "vgg16": vgg((2, 2, 3, 3, 3)),
    "vgg19": vgg((2, 2, 4, 4, 4)),
    "resnet50": resnet((3, 4, 6, 3)),
    "resnet101": resnet((3, 4, 23, 3)),
    "resnet152": resnet((3, 8, 36, 3)),
}
