"""Figure 20 of the ADA-GP paper: speed-ups over GPipe, DAPPLE and Chimera, stage costs from the accelerator model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from adagp.accelerator import CNNS, Design, Setting, network, paper_schedule
from adagp.accelerator.pipeline import SCHEMES, phases_of
from adagp.accelerator.pipeline.stages import StagePartition, stages
from adagp.accelerator.pipeline.training import training_steps
from adagp.report.table import Table
from adagp.reproduce.pipeline import DEVICES, MICROBATCHES
from adagp.schedules import Phase

PAPER = {"gpipe": (1.68, 1.654), "dapple": (1.68, 1.654), "chimera": (1.6, 1.575)}
"""Section 6.5: the largest speed-up and the mean; the bars themselves are only in the picture."""
_ONE_TO_ONE = (Phase.GP, Phase.BP)


@dataclass(frozen=True)
class Bar:
    """One network.

    Attributes:
        model: The network.
        staged: Its stages.
        one_to_one: For each scheme, the speed-up with a GP batch per BP batch: the paper's case.
        training: For each scheme, the speed-up over the whole ladder, warm-up included.
    """

    model: str
    staged: StagePartition
    one_to_one: dict[str, float]
    training: dict[str, float]


def bars(setting: Setting, design: Design, tell: Callable[[str], None]) -> list[Bar]:
    """Every network of the paper on ImageNet, in a pipeline of four devices with four micro-batches a batch.

    `tell` receives the network under way: row-stationary mappings take seconds.

    Raises:
        ValueError: if the batch cannot be cut into micro-batches of equal size.
    """
    if setting.batch < MICROBATCHES or setting.batch % MICROBATCHES:
        raise ValueError(f"batch={setting.batch}: must be a multiple of the {MICROBATCHES} micro-batches")
    schedule, steps = paper_schedule(setting.epochs)
    ladder = phases_of(schedule, range(steps))
    found = []
    for model in CNNS:
        tell(f"cutting {model} into {DEVICES} stages")
        staged = stages(network(model, "imagenet", setting.batch // MICROBATCHES), DEVICES, design, setting.machine)
        found.append(Bar(model, staged, _speed_ups(staged, _ONE_TO_ONE), _speed_ups(staged, ladder)))
    return found


def _speed_ups(staged: StagePartition, phases: Sequence[Phase]) -> dict[str, float]:
    exact = (Phase.BP,) * len(phases)
    return {
        scheme: training_steps(scheme, DEVICES, MICROBATCHES, exact, staged.plain)
        / training_steps(scheme, DEVICES, MICROBATCHES, phases, staged.predicting)
        for scheme in SCHEMES
    }


def bars_tables(found: Sequence[Bar], setting: Setting, design: Design) -> list[Table]:
    """The speed-ups in the paper's case, with what they rest on, and over the whole training."""
    machine = setting.machine
    array, grid = machine.array, machine.predictor.grid
    one_to_one = Table(
        title=f"Figure 20: speed-ups of a GP and a BP batch of {setting.batch}, {machine.dataflow}, {design.value}",
        columns=("network", *SCHEMES, "BW / FW", "predictor %", "longest stage"),
        rows=[
            (
                bar.model,
                *(f"{bar.one_to_one[scheme]:.3f}" for scheme in SCHEMES),
                f"{sum(bar.staged.plain.bp_backward) / sum(bar.staged.plain.bp_forward):.2f}",
                f"{100 * _predictor_share(bar.staged):.2f}",
                f"{bar.staged.imbalance:.2f}",
            )
            for bar in found
        ]
        + [(*cells, "", "", "") for cells in _summary([bar.one_to_one for bar in found])]
        + [
            (f"paper's {name}", *(f"{PAPER[scheme][place]:.3f}" for scheme in SCHEMES), "", "", "")
            for place, name in enumerate(("largest", "mean"))
        ],
        notes=(
            f"{DEVICES} devices of {array} PEs, {MICROBATCHES} micro-batches; messages are free",
            "speed-up: cycles of two plain BP batches over those of a GP and a BP batch",
            "with equal stages, BW = 2 FW and no predictor it is 42 / 25 over gpipe and dapple, 32 / 20 over chimera",
            "longest stage: over the mean one; layers are cut in the forward's order so that the longest is shortest",
            f"predictor %: of a plain BP batch's cycles; it works per micro-batch, on {grid}x{grid} pooled outputs",
            "the paper states neither batch, predictor, design nor cuts",
        ),
    )
    training = Table(
        title=f"The whole training: {setting.epochs} epochs of the ladder, 10 of them warm-up",
        columns=("network", *SCHEMES),
        rows=[
            *((bar.model, *(f"{bar.training[scheme]:.3f}" for scheme in SCHEMES)) for bar in found),
            *_summary([bar.training for bar in found]),
        ],
        notes=("speed-up: cycles of as many plain BP batches over the ladder's; the paper gives no such figure",),
    )
    return [one_to_one, training]


def _summary(speed_ups: Sequence[dict[str, float]]) -> list[tuple[str, ...]]:
    return [
        (name, *(f"{combine([each[scheme] for each in speed_ups]):.3f}" for scheme in SCHEMES))
        for name, combine in (("largest", max), ("mean", fmean))
    ]


def _predictor_share(staged: StagePartition) -> float:
    plain, predicting = staged.plain, staged.predicting
    cycles = sum(plain.bp_forward) + sum(plain.bp_backward)
    return (sum(predicting.bp_forward) + sum(predicting.bp_backward)) / cycles - 1
