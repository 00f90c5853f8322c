"""Drawings and settings of the ADA-GP paper (001), which say how it works rather than what it gives."""

from collections.abc import Iterator

from adagp.reproduce.numbers.row import Row, Verdict, judged
from adagp.schedules import Phase, ladder


def rows() -> Iterator[Row]:
    """Figures 1 to 6, 13 and 14, and the numbers of sections 3.5, 3.6 and 5."""
    engine = "`docs/architecture.md`; the invariants of `tests/engine`"
    yield Row(
        "figures 1, 2, 5",
        "phases: true gradients while the predictor learns, then predicted ones without a backward",
        "drawings",
        Verdict.REPRODUCED,
        "the same phases; in GP no graph is built and backward never runs",
        engine,
    )
    yield Row(
        "figure 3",
        "updates of GD, SGD, mini-batch GD and ADA-GP",
        "a drawing",
        Verdict.REPRODUCED,
        "`immediate` updates each layer during the forward, as drawn",
        "`adagp schedule --picture FILE`; `adagp train --set immediate=true`",
    )
    yield Row(
        "figure 4",
        "warm-up, then phases in turn",
        "a drawing",
        Verdict.REPRODUCED,
        "`schedules.ladder`",
        "`adagp schedule --epochs 90`",
    )
    yield from _ladder()
    place, rows_of_layer, length, pixels = _the_papers_layer()
    yield Row(
        "section 3.6, figure 6",
        "rows that the predictor gives for Conv2d(128, 256, 3) of VGG13",
        "out_ch x (in_ch x k x k) = 256 x 1,152",
        judged((rows_of_layer, length) == (256, 1152)),
        f"{rows_of_layer} x {length:,}",
        "`gp.coverage()` on VGG13",
    )
    yield Row(
        "section 3.6",
        "that layer is VGG13's fourth, with an output of 28 x 28",
        "fourth, 28 x 28",
        judged((place, pixels) == (4, 28)),
        f"it is convolution {place}, with {pixels} x {pixels} for images of 224 pixels",
        "`adagp reproduce numbers` builds the network and looks",
    )
    yield Row(
        "figure 13",
        "the baseline accelerator",
        "a drawing",
        Verdict.REPRODUCED,
        "PE array, buffers and controller in RTL, bit-exact in simulation",
        "`adagp hardware`",
    )
    yield Row(
        "figure 14",
        "the designs MAX, Efficient and LOW",
        "drawings",
        Verdict.REPRODUCED,
        "all three in RTL and in the cycle model",
        "`adagp hardware`, `adagp simulate network`",
    )
    yield Row(
        "section 5.1",
        "PEs of the baseline, weight-stationary",
        "180",
        Verdict.REPRODUCED,
        "180 as 12 x 15; it gives no shape",
        "`adagp simulate network --model vgg13 --data cifar10`",
    )
    yield Row(
        "section 5.2",
        "learning rates of model and predictor, optimizers, schedule",
        "1e-3 SGD with momentum, 1e-4 Adam, ReduceLROnPlateau",
        Verdict.REPRODUCED,
        "the presets ending in `-paper`; predictor `paper`",
        "`adagp compare --preset cifar10-resnet20-paper --data-root DIR`",
    )
    yield Row(
        "section 5.2",
        "networks",
        "15",
        Verdict.REPRODUCED,
        "15: thirteen CNNs, the Transformer, YOLO-v3",
        "`adagp models`",
    )


def _ladder() -> Iterator[Row]:
    schedule = ladder(steps_per_epoch=60)
    counts = []
    for epoch in (9, 10, 14, 18, 22):
        phases = [schedule(60 * epoch + step).phase for step in range(60)]
        gp = phases.count(Phase.GP)
        counts.append((gp, 60 - gp))
    expected = [(0, 60), (48, 12), (45, 15), (40, 20), (30, 30)]
    yield Row(
        "section 3.5",
        "warm-up of 10 epochs; then 4 epochs each of 4:1, 3:1, 2:1; then 1:1",
        "GP : BP = 0:1, 4:1, 3:1, 2:1, 1:1",
        judged(counts == expected),
        ", ".join(f"{gp}:{bp}" for gp, bp in counts) + " of 60 batches",
        "`adagp schedule --epochs 90 --steps-per-epoch 60`",
    )


def _the_papers_layer() -> tuple[int, int, int, int]:
    """Of VGG13's first convolution from 128 to 256 channels: its place, rows, row length, and the pixels it makes."""
    import torch
    from torch import nn

    from adagp import models
    from adagp.training.planning import outline

    model = outline("vgg13", "imagenet")
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    chosen = next(layer for layer in layers if (layer.in_channels, layer.out_channels) == (128, 256))
    seen: list[int] = []
    handle = chosen.register_forward_hook(lambda module, given, made: seen.append(made.shape[-1]))
    with torch.device("meta"):
        model(*models.example_inputs("vgg13", "imagenet"))
    handle.remove()
    return layers.index(chosen) + 1, chosen.out_channels, chosen.weight[0].numel(), seen[0]
