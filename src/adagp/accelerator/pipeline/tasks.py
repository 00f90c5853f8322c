"""The tasks of a pipeline, their devices and their dependencies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from adagp.schedules.plan import Phase, Plan, require_scale

SCHEMES: Mapping[str, str] = {
    "gpipe": "all forwards of a batch, then all backwards",
    "dapple": "one forward, one backward (1F1B): with equal stages as fast as gpipe, fewer activations held",
    "chimera": "two such pipelines in opposite directions, so that each stage is held by two devices",
    "zero-bubble": "1F1B with the backward split: weight gradients wait until there is nothing else to do (ZB-H1)",
    "local": "each stage has its backward right after its forward, by a loss of its own; no exact gradients",
}
"""How micro-batches are ordered and stages are placed."""


class Task(NamedTuple):
    """One pass of one micro-batch through one stage. All numbers count from 0, as torch counts ranks and stages.

    Attributes:
        backward: Whether it is the backward; otherwise it is the forward. Where the backward is split, the first part
            of it: the gradient of the stage's input.
        batch: The batch.
        micro_batch: The micro-batch within its batch.
        stage: The stage.
        replica: Which of the pipelines carries the micro-batch: the second of Chimera runs from the last device down.
        weights: Whether it is the second part of a split backward: the gradient of the stage's weights.
    """

    backward: bool
    batch: int
    micro_batch: int
    stage: int
    replica: int
    weights: bool = False


@dataclass(frozen=True)
class Pipeline:
    """As many stages as devices, batches cut into micro-batches, and the phase of each batch.

    Attributes:
        scheme: One of `SCHEMES`.
        devices: The number of devices; Chimera needs an even number.
        microbatches: Micro-batches per batch; Chimera sends the first half, rounded up, through its first pipeline.
        phases: The phase of each batch. WARMUP batches count as BP batches.
        scales: The fraction of their size that the samples of each batch have; empty where all are full.
    """

    scheme: str
    devices: int
    microbatches: int
    phases: tuple[Phase, ...]
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an impossible pipeline."""
        if self.scheme not in SCHEMES:
            raise ValueError(f"scheme={self.scheme!r}: is unknown; choose one of {', '.join(SCHEMES)}")
        for name in ("devices", "microbatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.scheme == "chimera" and self.devices % 2:
            raise ValueError(
                f"devices={self.devices}: chimera holds each stage on two devices and needs an even number; "
                "add or remove one, or choose gpipe or dapple"
            )
        if not self.phases:
            raise ValueError("phases: there is no batch; give at least one phase")
        if self.scales and len(self.scales) != len(self.phases):
            raise ValueError(f"scales: {len(self.scales)} for {len(self.phases)} phases; give one for each, or none")
        for scale in self.scales:
            require_scale(scale)

    @cached_property
    def shares(self) -> tuple[range, ...]:
        """The micro-batches that each replica of the pipeline carries."""
        if self.scheme != "chimera":
            return (range(self.microbatches),)
        half = -(-self.microbatches // 2)
        return (range(half), range(half, self.microbatches))

    def all_bp(self) -> "Pipeline":
        """The same batches by plain backpropagation, the reference of a speed-up; that of local losses is 1F1B."""
        scheme = "dapple" if self.scheme == "local" else self.scheme
        return replace(self, scheme=scheme, phases=(Phase.BP,) * len(self.phases), scales=())

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of a stage's input and of its weights are tasks of their own."""
        return self.scheme == "zero-bubble"

    def scale_of(self, batch: int) -> float:
        """The fraction of their size that the samples of a batch have."""
        return self.scales[batch] if self.scales else 1.0

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The phase of each batch, with the scale of a coarse one: `BP@0.5`."""
        scales = self.scales or (1.0,) * len(self.phases)
        return tuple(
            phase.value if scale == 1 else f"{phase.value}@{scale:g}"
            for phase, scale in zip(self.phases, scales, strict=True)
        )

    def has_backward(self, batch: int) -> bool:
        """Whether a batch has a backward; GP batches have none."""
        return self.phases[batch] is not Phase.GP

    def stage_of(self, device: int, replica: int) -> int:
        """The stage that a device holds for a replica."""
        return device if replica == 0 else self.devices - 1 - device

    def device_of(self, task: Task) -> int:
        """The device that does a task."""
        return self.stage_of(task.stage, task.replica)  # its own inverse

    def needs(self, task: Task) -> list[Task]:
        """The tasks that must end before a task can start, on top of its device's own order.

        A forward needs the stage before it, and the weights: the stage's update of the batch before. A backward needs
        the stage after it, unless it starts at a loss of its own stage, and its own forward.
        """
        if task.weights:
            return [task._replace(weights=False)]
        if task.backward:
            own = [task._replace(backward=False)]
            last = self.scheme == "local" or task.stage == self.devices - 1
            return own if last else [*own, task._replace(stage=task.stage + 1)]
        before = [task._replace(stage=task.stage - 1)] if task.stage else []
        return before + (self._updated_by(task.batch - 1, task.stage) if task.batch else [])

    def _updated_by(self, batch: int, stage: int) -> list[Task]:
        """The last tasks of a batch on a stage: when they are done, the stage updates its weights.

        With gradients predicted that is when its forwards are done, otherwise its backwards. Every order does the last
        micro-batch of a share last. Holders of the same stage wait for each other, so that their weights stay equal.
        """
        backward = self.has_backward(batch)
        weights = backward and self.splits_backward
        return [
            Task(backward, batch, share[-1], stage, replica, weights)
            for replica, share in enumerate(self.shares)
            if len(share)
        ]


def phases_of(schedule: Callable[[int], Plan], batches: Sequence[int]) -> tuple[Phase, ...]:
    """The phases that a training's schedule gives to these batches, counted from 0."""
    return tuple(schedule(batch).phase for batch in batches)


def scales_of(schedule: Callable[[int], Plan], batches: Sequence[int]) -> tuple[float, ...]:
    """The scales that a training's schedule gives to these batches; empty where all are full."""
    scales = tuple(schedule(batch).scale for batch in batches)
    return scales if any(scale < 1 for scale in scales) else ()
