"""Figure 20 of the ADA-GP paper: speed-ups over GPipe, DAPPLE and Chimera, stage costs from the accelerator model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from adagp.accelerator import CNNS, Design, Setting, network
from adagp.accelerator.pipeline import phases_of, scales_of
from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.pipeline.stages import StagePartition, stages
from adagp.accelerator.pipeline.training import training_steps
from adagp.report.table import Table
from adagp.reproduce.coarse import METHODS, method_notes
from adagp.reproduce.pipeline import DEVICES, MICROBATCHES
from adagp.schedules import Phase

PAPER = {"gpipe": (1.68, 1.654), "dapple": (1.68, 1.654), "chimera": (1.6, 1.575)}
"""Section 6.5: the largest speed-up and the mean; the bars themselves are only in the picture."""
_ONE_TO_ONE = (Phase.GP, Phase.BP)
Bars = Mapping[str, Mapping[str, Mapping[str, float | None]]]


@dataclass(frozen=True)
class CoarseBar:
    """One network with half-size BP batches instead of GP batches, which is not in the paper.

    Attributes:
        one_to_one: For each scheme, the speed-up with a coarse batch per BP batch.
        training: For each scheme, the speed-up over the whole ladder, with coarse batches in its GP slots.
        progressive: For each scheme, the speed-up of a training on small images first.
    """

    one_to_one: dict[str, float]
    training: dict[str, float]
    progressive: dict[str, float]


@dataclass(frozen=True)
class Bar:
    """One network.

    Attributes:
        model: The network.
        staged: Its stages.
        one_to_one: For each scheme, the speed-up with a GP batch per BP batch: the paper's case.
        training: For each scheme, the speed-up over the whole ladder, warm-up included.
        coarse: Coarse batches instead; None if the network cannot take smaller images.
    """

    model: str
    staged: StagePartition
    one_to_one: dict[str, float]
    training: dict[str, float]
    coarse: CoarseBar | None


def bars(setting: Setting, design: Design, tell: Callable[[str], None]) -> list[Bar]:
    """Every network of the paper on ImageNet, in a pipeline of four devices with four micro-batches a batch.

    `tell` receives the network under way: row-stationary mappings take seconds.

    Raises:
        ValueError: if the batch cannot be cut into micro-batches of equal size.
    """
    if setting.batch < MICROBATCHES or setting.batch % MICROBATCHES:
        raise ValueError(f"batch={setting.batch}: must be a multiple of the {MICROBATCHES} micro-batches")
    ladder = _Batches.of(setting)
    ours = [_Batches((Phase.BP,) * 2, (setting.scale, 1.0))]
    ours += [_Batches.of(replace(setting, method=method)) for method in METHODS]
    found = []
    for model in CNNS:
        tell(f"cutting {model} into {DEVICES} stages")
        staged = _staged(model, setting, design)
        one_to_one, training = (
            _speed_ups(staged, staged.predicting, batches) for batches in (_Batches(_ONE_TO_ONE), ladder)
        )
        coarse = None
        if staged.coarse is not None:
            price = replace(staged.plain, plain={setting.scale: staged.coarse})
            coarse = CoarseBar(*(_speed_ups(staged, price, batches) for batches in ours))
        found.append(Bar(model, staged, one_to_one, training, coarse))
    return found


@dataclass(frozen=True)
class _Batches:
    """The phases and scales of a training's batches."""

    phases: tuple[Phase, ...]
    scales: tuple[float, ...] = ()

    @classmethod
    def of(cls, setting: Setting) -> "_Batches":
        schedule, steps = setting.schedule()
        return cls(phases_of(schedule, range(steps)), scales_of(schedule, range(steps)))


def _staged(model: str, setting: Setting, design: Design) -> StagePartition:
    """The network's stages; without coarse batches where it cannot take smaller images."""
    ops = network(model, "imagenet", setting.batch // MICROBATCHES)
    try:
        return stages(ops, DEVICES, design, setting.machine, setting.scale)
    except ValueError as error:
        if str(error).startswith("scale="):
            return stages(ops, DEVICES, design, setting.machine)
        raise


def _speed_ups(staged: StagePartition, price: Costs, batches: _Batches) -> dict[str, float]:
    exact = (Phase.BP,) * len(batches.phases)
    return {
        scheme: training_steps(scheme, DEVICES, MICROBATCHES, exact, staged.plain)
        / training_steps(scheme, DEVICES, MICROBATCHES, batches.phases, price, batches.scales)
        for scheme in PAPER
    }


def bars_tables(found: Sequence[Bar], setting: Setting, design: Design) -> list[Table]:
    """The speed-ups in the paper's case, with what they rest on, and over the whole training."""
    machine = setting.machine
    array, grid = machine.array, machine.predictor.grid
    one_to_one = Table(
        title=f"Figure 20: speed-ups of a GP and a BP batch of {setting.batch}, {machine.dataflow}, {design.value}",
        columns=("network", *PAPER, "BW / FW", "predictor %", "longest stage"),
        rows=[
            (
                bar.model,
                *(f"{bar.one_to_one[scheme]:.3f}" for scheme in PAPER),
                f"{sum(bar.staged.plain.bp_backward) / sum(bar.staged.plain.bp_forward):.2f}",
                f"{100 * _predictor_share(bar.staged):.2f}",
                f"{bar.staged.imbalance:.2f}",
            )
            for bar in found
        ]
        + [(*cells, "", "", "") for cells in _summary([bar.one_to_one for bar in found])]
        + [
            (f"paper's {name}", *(f"{PAPER[scheme][place]:.3f}" for scheme in PAPER), "", "", "")
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
        columns=("network", *PAPER),
        rows=[
            *((bar.model, *(f"{bar.training[scheme]:.3f}" for scheme in PAPER)) for bar in found),
            *_summary([bar.training for bar in found]),
        ],
        notes=("speed-up: cycles of as many plain BP batches over the ladder's; the paper gives no such figure",),
    )
    return [one_to_one, training, _coarse_table(found, setting)]


def _coarse_table(found: Sequence[Bar], setting: Setting) -> Table:
    """Coarse batches in the same pipelines, beside the means of GP batches for the same networks."""
    able = [(bar, bar.coarse) for bar in found if bar.coarse is not None]
    cases: list[list[dict[str, float]]] = [
        [coarse.one_to_one for _, coarse in able],
        [coarse.training for _, coarse in able],
        [coarse.progressive for _, coarse in able],
    ]
    rows = [
        (bar.model, *(f"{case[place][scheme]:.3f}" for scheme in PAPER for case in cases))
        for place, (bar, _) in enumerate(able)
    ]
    means = [f"{fmean(each[scheme] for each in case):.3f}" for scheme in PAPER for case in cases]
    predicted = [[bar.one_to_one for bar, _ in able], [bar.training for bar, _ in able]]
    with_gp = [
        cell
        for scheme in PAPER
        for cell in (*(f"{fmean(each[scheme] for each in case):.3f}" for case in predicted), "")
    ]
    unable = [bar.model for bar in found if bar.coarse is None]
    return Table(
        title="Not in the paper: the same pipelines with half-size BP batches instead of GP",
        columns=("network", *(f"{scheme} {case}" for scheme in PAPER for case in ("1:1", *METHODS))),
        rows=[*rows, ("mean", *means), ("mean with GP batches", *with_gp)],
        notes=(
            "1:1: a half-size BP batch and a BP batch, against two plain BP batches; mean with GP batches: as above",
            *method_notes(setting),
            *([f"cannot take smaller images: {', '.join(unable)}"] if unable else []),
            "a coarse batch has a backward, so the pipeline runs empty after it; after a GP batch it does not",
        ),
    )


def picture_bars(found: Sequence[Bar], design: Design) -> tuple[Bars, Bars]:
    """The paper's case by scheme and network, and ours: one coarse batch per BP batch, and progressive resizing."""
    paper = {scheme: {bar.model: {design.value: bar.one_to_one[scheme]} for bar in found} for scheme in PAPER}
    ours = {
        scheme: {
            bar.model: {
                "coarse": bar.coarse.one_to_one[scheme] if bar.coarse else None,
                "progressive": bar.coarse.progressive[scheme] if bar.coarse else None,
            }
            for bar in found
        }
        for scheme in PAPER
    }
    return paper, ours


def _summary(speed_ups: Sequence[dict[str, float]]) -> list[tuple[str, ...]]:
    return [
        (name, *(f"{combine([each[scheme] for each in speed_ups]):.3f}" for scheme in PAPER))
        for name, combine in (("largest", max), ("mean", fmean))
    ]


def _predictor_share(staged: StagePartition) -> float:
    plain, predicting = staged.plain, staged.predicting
    cycles = sum(plain.bp_forward) + sum(plain.bp_backward)
    return (sum(predicting.bp_forward) + sum(predicting.bp_backward)) / cycles - 1
