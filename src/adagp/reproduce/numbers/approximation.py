"""Numbers of "Accelerated CNN Training Through Gradient Approximation" (paper 003)."""

from collections.abc import Iterator

from adagp.reproduce.approximation import (
    PAPER_COSTS,
    PAPER_FULL,
    PAPER_NAMES,
    PAPER_SMALLER,
    PAPER_TABLE_5,
    SMALLER,
)
from adagp.reproduce.numbers.row import Row, Verdict, judged
from adagp.reproduce.topk_kernel import FAST, TABLE_1, Shape

# Median speed-ups of `adagp reproduce approximation-kernel`, contiguous, one core with AVX-512: docs/benchmarks.md.
KERNEL = (11.1, 13.2, 7.7, 4.9, 14.3, 3.0, 2.9, 3.4)
# The kernel's and the transposes' times as printed.
KERNEL_TIMES = (
    (0.46, 0.05),
    (0.20, 0.08),
    (1.25, 0.07),
    (1.22, 0.08),
    (0.13, 0.16),
    (0.04, 0.05),
    (0.03, 0.02),
    (0.04, 0.02),
)
# Accuracy in % after 4 epochs of 20,000 images, one seed: docs/results.md.
SHORT_TABLE_5 = {"zero": (42.18, 43.38, 43.65), "random": (42.73, 41.02, 31.80), "topk": (43.77, 43.40, 42.08)}
SHORT_FULL, SHORT_SMALLER = 45.77, 43.25
_TABLE_NETWORKS = {2: "2-layer CNN", 3: "ResNet-20", 4: "VGG-19"}
_FIRST_SHAPE_MACS = 128 * 8 * 8 * 256 * 256 * 9
_LONG = "200 to 500 epochs of 50,000 images take a GPU"


def rows() -> Iterator[Row]:
    """Its tables, figures and stated numbers."""
    yield from _statements()
    for shape, ours in zip(TABLE_1, KERNEL, strict=True):
        yield _kernel_row(shape, ours)
    yield from _kernel_statements()
    for table, costs in PAPER_COSTS.items():
        for method, (speed, loss) in costs.items():
            yield _cost_row(table, method, speed, loss)
    yield from _table_5()
    yield from _curves()


def _statements() -> Iterator[Row]:
    yield Row(
        "figures 1, 2",
        "which convolution is approximated, and how patches are gathered",
        "drawings",
        Verdict.REPRODUCED,
        "sources `zero`, `random`, `topk`; all other gradients stay exact",
        "`adagp train --method topk`; `tests/kernels`, invariants 3 and 4",
    )
    yield Row(
        "figures 3, 4",
        "approximation schedules",
        "tables of layers and batches",
        Verdict.REPRODUCED,
        "any such table is a schedule",
        "`adagp schedule show --schedule second-layer --model cnn2 --method zero`",
    )
    for network, milliseconds, skipped in (("ResNet-20", 264, 51), ("VGG-13", 1340, 408)):
        yield Row(
            "section 2",
            f"share of the filter gradients in the time of a batch, {network}",
            "roughly a third",
            judged(skipped / milliseconds > 0.25),
            f"{100 * skipped / milliseconds:.0f} % of {milliseconds:,} ms",
            "`python -m benchmarks.approximation`; on a CPU",
        )
    yield Row(
        "section 2",
        "speed-up at most, for a quarter of a third",
        "around 8 %",
        judged(abs(100 / 12 - 8) < 0.5),
        f"{100 / 12:.1f} % of the time",
        "arithmetic: `adagp reproduce numbers`",
    )
    yield Row(
        "section 2.2",
        "standard deviation of random gradients",
        "1/128",
        Verdict.REPRODUCED,
        "one over the samples in the batch, so 1/128 for its 128",
        "`adagp.sources.Random`; `tests/sources`",
    )
    yield Row(
        "section 2.3",
        "sparsity of the top-1 gradient",
        "1 - 1/HW",
        Verdict.REPRODUCED,
        "one entry per sample and channel; with k = HW it is the exact gradient",
        "`tests/kernels/test_topk.py`",
    )
    yield Row(
        "section 3",
        "layers approximated in VGG-19 and ResNet-20",
        "4, 5",
        judged(_approximated("vgg19", "resnet20") == (4, 5)),
        "{}, {}".format(*_approximated("vgg19", "resnet20")),
        "`adagp schedule show --method zero --model resnet20`",
    )
    yield Row(
        "abstract",
        "speed-up of ResNet-20 and VGG-19",
        "upwards of 7 %",
        Verdict.OPEN,
        "`zero` on schedule 1: 4 % (ResNet-20), 13 % (VGG-13); `topk`: 1 %, 17 %",
        "it is about its GPU; on a CPU `python -m benchmarks.approximation`",
    )


def _kernel_row(shape: Shape, ours: float) -> Row:
    return Row(
        "table 1",
        f"topk kernel, {shape}, speed-up over the dense gradient",
        f"{shape.paper_speed_up}",
        Verdict.OPEN,
        f"{ours} on a CPU",
        "it is about its GPU; `adagp reproduce approximation-kernel`",
    )


def _kernel_statements() -> Iterator[Row]:
    fast = [shape for shape in TABLE_1 if shape.paper_speed_up >= FAST]
    yield Row(
        "section 3.1",
        "at least three times as fast in most cases",
        f"{len(fast)} of {len(TABLE_1)}",
        judged(sum(speed >= FAST for speed in KERNEL) > len(TABLE_1) / 2),
        f"{sum(speed >= FAST for speed in KERNEL)} of {len(KERNEL)} on a CPU",
        "`adagp reproduce approximation-kernel`",
    )
    over = sum(transposed > kernel / 2 for kernel, transposed in KERNEL_TIMES)
    yield Row(
        "section 3.1",
        "transposes take over half of the kernel's time",
        "in many cases",
        judged(over >= 2),
        f"in {over} of {len(KERNEL_TIMES)} rows of its table",
        "arithmetic on its table 1; ours needs no transpose",
    )
    yield Row(
        "table 1",
        "unit of its times",
        "microseconds",
        Verdict.REFUTED,
        f"milliseconds: {2e-9 * _FIRST_SHAPE_MACS:.1f} GFLOP in 0.89 µs are {2e-12 * _FIRST_SHAPE_MACS / 0.89e-6:,.0f} "
        "TFLOP/s, and a Titan Xp has 12",
        "arithmetic: 128 x 8 x 8 x 256 x 256 x 9 multiply-adds, for 3 x 3 filters and a batch of 128",
    )


def _cost_row(table: int, method: str, speed: float | None, loss: float) -> Row:
    shown = "slower by over 100 %" if speed is None else f"{speed:+g} % speed"
    name = PAPER_NAMES.get(method, "ResNet-14, full gradient")
    known = {
        (3, "zero"): SHORT_FULL - SHORT_TABLE_5["zero"][0],
        (3, "random"): SHORT_FULL - SHORT_TABLE_5["random"][0],
        (3, "topk"): SHORT_FULL - SHORT_TABLE_5["topk"][0],
        (3, SMALLER): SHORT_FULL - SHORT_SMALLER,
    }.get((table, method))
    return Row(
        f"table {table}",
        f"{_TABLE_NETWORKS[table]}, {name}",
        f"{shown}, accuracy {-loss:+g}",
        Verdict.OPEN,
        "-" if known is None else f"accuracy {-known:+.2f} after 4 epochs",
        f"{_LONG}; `adagp reproduce approximation-accuracy --tables {table} --data-root DIR`",
    )


def _table_5() -> Iterator[Row]:
    command = "`adagp reproduce approximation-accuracy --tables 5 --data-root DIR`"
    for method, theirs in PAPER_TABLE_5.items():
        for place, value in enumerate(theirs):
            yield Row(
                "table 5",
                f"{PAPER_NAMES[method]}, schedule {place + 1}, accuracy %",
                f"{value}",
                Verdict.OPEN,
                f"{SHORT_TABLE_5[method][place]:.2f} after 4 epochs",
                f"{_LONG}; {command}",
            )
    for name, stated, short in (
        ("full gradient", PAPER_FULL, SHORT_FULL),
        ("ResNet-14", PAPER_SMALLER, SHORT_SMALLER),
    ):
        yield Row(
            "table 5",
            f"{name}, accuracy %",
            f"{stated}",
            Verdict.OPEN,
            f"{short:.2f} after 4 epochs",
            f"{_LONG}; {command}",
        )
    worst = min(SHORT_TABLE_5["random"])
    yield Row(
        "section 3.4",
        "random falls behind on schedules 2 and 3, most on 3",
        "88.8, 87.9 against 90.0",
        judged(SHORT_TABLE_5["random"][2] == worst and worst < SHORT_TABLE_5["random"][0] - 5),
        "41.02, 31.80 against 42.73 after 4 epochs",
        command,
    )
    share = 100 * 7.1 / 22
    yield Row(
        "section 3.3",
        "zero's speed-up as a part of ResNet-14's",
        "roughly a third",
        judged(abs(share - 33) < 5),
        f"{share:.0f} %",
        "arithmetic on its table 3",
    )


def _curves() -> Iterator[Row]:
    for figure, what, table in (
        (5, "2-layer CNN", 2),
        (6, "ResNet-20, schedule 1", 3),
        (7, "VGG-19", 4),
        (8, "ResNet-20, schedules 2 and 3", 5),
    ):
        yield Row(
            f"figure {figure}",
            f"{what}: training loss and validation accuracy over epochs",
            "images without values",
            Verdict.OPEN,
            "curves of short runs",
            f"`adagp reproduce approximation-accuracy --tables {table} --picture FILE --data-root DIR`",
        )


def _approximated(*models: str) -> tuple[int, ...]:
    """The convolutions that schedule 1 approximates; shortcuts of a ResNet are not counted, as the paper has none."""
    from adagp import schedules
    from adagp.training.planning import outline

    found = []
    for model in models:
        layers = [name for name in schedules.layer_names(outline(model), "Conv", None) if "shortcut" not in name]
        plan = schedules.approximation("1", layers, "zero")(0)
        found.append(sum(plan.source(layer) == "zero" for layer in layers))
    return tuple(found)
