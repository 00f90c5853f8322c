"""What is published of the ImageNet networks: parameters, multiply-adds, names and shapes of their state dicts.

Nothing here is read off our code. Parameters and GFLOPS (which are multiply-adds there) stand in torchvision's
documentation of each model's weights; of Inception-V4 in imgclsmob's and timm's tables of results. The names and shapes
follow the rules by which torchvision (timm for Inception-V4) names its modules, and the tables of the papers.
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
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "mobilenet_v2": 3_504_872,
    "inception_v3": 27_161_264,
    "inception_v4": 42_679_816,
}
GIGA_MULTIPLY_ADDS = {
    "vgg13": 11.31,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "densenet121": 2.83,
    "densenet161": 7.73,
    "densenet169": 3.36,
    "densenet201": 4.29,
    "mobilenet_v2": 0.30,
    "inception_v3": 5.71,
    "inception_v4": 12.28,  # two for every output of a norm are in it
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


def densenet(growth: int, stages: tuple[int, ...]) -> Shapes:
    width = 2 * growth
    found: Shapes = {"features.conv0.weight": (width, 3, 7, 7), **dict(_norm("features.norm0", width))}
    for stage, layers in enumerate(stages, start=1):
        for layer in range(1, layers + 1):
            name = f"features.denseblock{stage}.denselayer{layer}"
            found.update(_norm(f"{name}.norm1", width))
            found[f"{name}.conv1.weight"] = (4 * growth, width, 1, 1)
            found.update(_norm(f"{name}.norm2", 4 * growth))
            found[f"{name}.conv2.weight"] = (growth, 4 * growth, 3, 3)
            width += growth
        if stage < 4:
            found.update(_norm(f"features.transition{stage}.norm", width))
            found[f"features.transition{stage}.conv.weight"] = (width // 2, width, 1, 1)
            width //= 2
    found.update(_norm("features.norm5", width))
    found.update(_linear("classifier", 1000, width))
    return found


def mobilenet_v2() -> Shapes:
    found: Shapes = {"features.0.0.weight": (32, 3, 3, 3), **dict(_norm("features.0.1", 32))}
    block, before = 1, 32
    for expansion, width, repeats in (
        (1, 16, 1),
        (6, 24, 2),
        (6, 32, 3),
        (6, 64, 4),
        (6, 96, 3),
        (6, 160, 3),
        (6, 320, 1),
    ):
        for _ in range(repeats):
            name, hidden, place = f"features.{block}.conv", before * expansion, 0
            if expansion > 1:
                found[f"{name}.0.0.weight"] = (hidden, before, 1, 1)
                found.update(_norm(f"{name}.0.1", hidden))
                place = 1
            found[f"{name}.{place}.0.weight"] = (hidden, 1, 3, 3)
            found.update(_norm(f"{name}.{place}.1", hidden))
            found[f"{name}.{place + 1}.weight"] = (width, hidden, 1, 1)
            found.update(_norm(f"{name}.{place + 2}", width))
            block, before = block + 1, width
    found["features.18.0.weight"] = (1280, 320, 1, 1)
    found.update(_norm("features.18.1", 1280))
    found.update(_linear("classifier.1", 1000, 1280))
    return found


def _units(table: str) -> Shapes:
    """Convolutions with their norms, from lines of `name out in kernel`, a kernel being `h` or `hxw`."""
    found: Shapes = {}
    for line in table.split("\n"):
        if line.strip():
            name, out, fan_in, kernel = line.split()
            height, _, width = kernel.partition("x")
            found[f"{name}.conv.weight"] = (int(out), int(fan_in), int(height), int(width or height))
            found.update(_norm(f"{name}.bn", int(out)))
    return found


def inception_v3() -> Shapes:
    table = """
        Conv2d_1a_3x3 32 3 3
        Conv2d_2a_3x3 32 32 3
        Conv2d_2b_3x3 64 32 3
        Conv2d_3b_1x1 80 64 1
        Conv2d_4a_3x3 192 80 3
        Mixed_6a.branch3x3 384 288 3
        Mixed_6a.branch3x3dbl_1 64 288 1
        Mixed_6a.branch3x3dbl_2 96 64 3
        Mixed_6a.branch3x3dbl_3 96 96 3
        AuxLogits.conv0 128 768 1
        AuxLogits.conv1 768 128 5
        Mixed_7a.branch3x3_1 192 768 1
        Mixed_7a.branch3x3_2 320 192 3
        Mixed_7a.branch7x7x3_1 192 768 1
        Mixed_7a.branch7x7x3_2 192 192 1x7
        Mixed_7a.branch7x7x3_3 192 192 7x1
        Mixed_7a.branch7x7x3_4 192 192 3
    """
    for letter, before, pool in (("b", 192, 32), ("c", 256, 64), ("d", 288, 64)):
        table += f"""
        Mixed_5{letter}.branch1x1 64 {before} 1
        Mixed_5{letter}.branch5x5_1 48 {before} 1
        Mixed_5{letter}.branch5x5_2 64 48 5
        Mixed_5{letter}.branch3x3dbl_1 64 {before} 1
        Mixed_5{letter}.branch3x3dbl_2 96 64 3
        Mixed_5{letter}.branch3x3dbl_3 96 96 3
        Mixed_5{letter}.branch_pool {pool} {before} 1
        """
    for letter, width in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        table += f"""
        Mixed_6{letter}.branch1x1 192 768 1
        Mixed_6{letter}.branch7x7_1 {width} 768 1
        Mixed_6{letter}.branch7x7_2 {width} {width} 1x7
        Mixed_6{letter}.branch7x7_3 192 {width} 7x1
        Mixed_6{letter}.branch7x7dbl_1 {width} 768 1
        Mixed_6{letter}.branch7x7dbl_2 {width} {width} 7x1
        Mixed_6{letter}.branch7x7dbl_3 {width} {width} 1x7
        Mixed_6{letter}.branch7x7dbl_4 {width} {width} 7x1
        Mixed_6{letter}.branch7x7dbl_5 192 {width} 1x7
        Mixed_6{letter}.branch_pool 192 768 1
        """
    for letter, before in (("b", 1280), ("c", 2048)):
        table += f"""
        Mixed_7{letter}.branch1x1 320 {before} 1
        Mixed_7{letter}.branch3x3_1 384 {before} 1
        Mixed_7{letter}.branch3x3_2a 384 384 1x3
        Mixed_7{letter}.branch3x3_2b 384 384 3x1
        Mixed_7{letter}.branch3x3dbl_1 448 {before} 1
        Mixed_7{letter}.branch3x3dbl_2 384 448 3
        Mixed_7{letter}.branch3x3dbl_3a 384 384 1x3
        Mixed_7{letter}.branch3x3dbl_3b 384 384 3x1
        Mixed_7{letter}.branch_pool 192 {before} 1
        """
    return {**_units(table), **dict(_linear("fc", 1000, 2048)), **dict(_linear("AuxLogits.fc", 1000, 768))}


def inception_v4() -> Shapes:
    table = """
        features.0 32 3 3
        features.1 32 32 3
        features.2 64 32 3
        features.3.conv 96 64 3
        features.4.branch0.0 64 160 1
        features.4.branch0.1 96 64 3
        features.4.branch1.0 64 160 1
        features.4.branch1.1 64 64 1x7
        features.4.branch1.2 64 64 7x1
        features.4.branch1.3 96 64 3
        features.5.conv 192 192 3
        features.10.branch0 384 384 3
        features.10.branch1.0 192 384 1
        features.10.branch1.1 224 192 3
        features.10.branch1.2 256 224 3
        features.18.branch0.0 192 1024 1
        features.18.branch0.1 192 192 3
        features.18.branch1.0 256 1024 1
        features.18.branch1.1 256 256 1x7
        features.18.branch1.2 320 256 7x1
        features.18.branch1.3 320 320 3
    """
    for place in range(6, 10):
        table += f"""
        features.{place}.branch0 96 384 1
        features.{place}.branch1.0 64 384 1
        features.{place}.branch1.1 96 64 3
        features.{place}.branch2.0 64 384 1
        features.{place}.branch2.1 96 64 3
        features.{place}.branch2.2 96 96 3
        features.{place}.branch3.1 96 384 1
        """
    for place in range(11, 18):
        table += f"""
        features.{place}.branch0 384 1024 1
        features.{place}.branch1.0 192 1024 1
        features.{place}.branch1.1 224 192 1x7
        features.{place}.branch1.2 256 224 7x1
        features.{place}.branch2.0 192 1024 1
        features.{place}.branch2.1 192 192 7x1
        features.{place}.branch2.2 224 192 1x7
        features.{place}.branch2.3 224 224 7x1
        features.{place}.branch2.4 256 224 1x7
        features.{place}.branch3.1 128 1024 1
        """
    for place in range(19, 22):
        table += f"""
        features.{place}.branch0 256 1536 1
        features.{place}.branch1_0 384 1536 1
        features.{place}.branch1_1a 256 384 1x3
        features.{place}.branch1_1b 256 384 3x1
        features.{place}.branch2_0 384 1536 1
        features.{place}.branch2_1 448 384 3x1
        features.{place}.branch2_2 512 448 1x3
        features.{place}.branch2_3a 256 512 1x3
        features.{place}.branch2_3b 256 512 3x1
        features.{place}.branch3.1 256 1536 1
        """
    return {**_units(table), **dict(_linear("last_linear", 1000, 1536))}


STATE_DICTS = {
    "vgg13": vgg((2, 2, 2, 2, 2)),
    "vgg16": vgg((2, 2, 3, 3, 3)),
    "vgg19": vgg((2, 2, 4, 4, 4)),
    "resnet50": resnet((3, 4, 6, 3)),
    "resnet101": resnet((3, 4, 23, 3)),
    "resnet152": resnet((3, 8, 36, 3)),
    "densenet121": densenet(32, (6, 12, 24, 16)),
    "densenet161": densenet(48, (6, 12, 36, 24)),
    "densenet169": densenet(32, (6, 12, 32, 32)),
    "densenet201": densenet(32, (6, 12, 48, 32)),
    "mobilenet_v2": mobilenet_v2(),
    "inception_v3": inception_v3(),
    "inception_v4": inception_v4(),
}
