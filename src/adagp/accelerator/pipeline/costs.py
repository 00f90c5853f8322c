"""The durations of a pipeline's tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.accelerator.pipeline.tasks import Pipeline, Task

_LONGEST = 1e15  # sums of whole numbers stay exact
_NO_TIME = "every stage must take a positive and finite time; give numbers above 0, up to 1e15"


@dataclass(frozen=True)
class Costs:
    """How long each stage takes for one micro-batch, in steps, cycles or any other unit of time.

    Attributes:
        bp_forward: Forward of each stage in a BP or WARMUP batch.
        bp_backward: Backward of each stage: both gradients and the predictor's learning.
        gp_forward: Forward of each stage in a GP batch.
        communication: Time of a message from one device to another; devices keep working meanwhile.
    """

    bp_forward: tuple[float, ...]
    bp_backward: tuple[float, ...]
    gp_forward: tuple[float, ...]
    communication: float = 0

    def __post_init__(self) -> None:
        """Refuse times that are not positive or not finite."""
        for name in ("bp_forward", "bp_backward", "gp_forward"):
            if not all(0 < value <= 4 * _LONGEST for value in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: {_NO_TIME}")
        if not 0 <= self.communication <= _LONGEST:
            raise ValueError(f"communication={self.communication}: must be 0 or more, and finite: at most 1e15")

    def of(self, task: Task, pipeline: Pipeline) -> float:
        """How long a task takes."""
        forward = self.bp_forward if pipeline.has_backward(task.batch) else self.gp_forward
        full = (self.bp_backward if task.backward else forward)[task.stage]
        return full * pipeline.work(task.batch) if pipeline.scales else full

    def check(self, devices: int) -> None:
        """Refuse costs whose number of stages differs from the number of devices."""
        for name in ("bp_forward", "bp_backward", "gp_forward"):
            if len(getattr(self, name)) != devices:
                raise ValueError(f"{name}: has {len(getattr(self, name))} stages for {devices} devices; give one each")


def costs(
    devices: int,
    forward: float | Sequence[float] = 1,
    backward: float | Sequence[float] = 2,
    predictor: float | Sequence[float] = 0,
    communication: float = 0,
) -> Costs:
    """Costs as ADA-GP counts them (sections 3.7 and 6.5): a step is a forward, a backward takes two.

    The predictor adds `predictor` (the paper's alpha) to every forward and twice that to every backward. All but
    `communication` may be given per stage.
    """
    ahead, back, alpha = (
        _per_stage(name, value, devices)
        for name, value in (("forward", forward), ("backward", backward), ("predictor", predictor))
    )
    for name, given, values in (("forward", forward, ahead), ("backward", backward, back)):
        if not all(0 < value <= _LONGEST for value in values):
            raise ValueError(f"{name}={given}: {_NO_TIME}")
    if not all(0 <= value <= _LONGEST for value in alpha):
        raise ValueError(f"predictor={predictor}: must be 0 or more, and finite: at most 1e15")
    with_predictor = tuple(value + extra for value, extra in zip(ahead, alpha, strict=True))
    learning = tuple(value + 2 * extra for value, extra in zip(back, alpha, strict=True))
    return Costs(with_predictor, learning, with_predictor, communication)


def _per_stage(name: str, value: float | Sequence[float], devices: int) -> tuple[float, ...]:
    if not isinstance(value, Sequence):
        return (value,) * devices
    if len(value) != devices:
        raise ValueError(f"{name}: {len(value)} values for {devices} stages; give one for all, or one for each")
    return tuple(value)
