"""The durations of a pipeline's tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
        bp_weights: The part of each backward that is the gradient of the weights, where it is split; empty for half.
        communication: Time of a message from one device to another; devices keep working meanwhile.
        plain: Costs without the predictor, by scale: it rests in coarse batches. A scale that is missing takes its
            square of scale 1, since work goes with the positions of an image; scale 1 is by default these costs.
    """

    bp_forward: tuple[float, ...]
    bp_backward: tuple[float, ...]
    gp_forward: tuple[float, ...]
    communication: float = 0
    plain: Mapping[float, "Costs"] = field(default_factory=dict)
    bp_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse times that are not positive or not finite."""
        for name in ("bp_forward", "bp_backward", "gp_forward"):
            if not all(0 < value <= 4 * _LONGEST for value in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: {_NO_TIME}")
        for whole, part in zip(self.bp_backward, self.bp_weights, strict=False):
            if not 0 < part < whole:
                raise ValueError(
                    f"bp_weights={self.bp_weights}: each must be a part of its backward, above 0 and below {whole:g}"
                )
        if not 0 <= self.communication <= _LONGEST:
            raise ValueError(f"communication={self.communication}: must be 0 or more, and finite: at most 1e15")

    def of(self, task: Task, pipeline: Pipeline) -> float:
        """How long a task takes."""
        scale, exact = pipeline.scale_of(task.batch), pipeline.has_backward(task.batch)
        splits = pipeline.splits_backward
        if scale == 1:
            return self._full(task, exact, splits)
        if not exact:
            return scale**2 * self._full(task, exact, splits)
        if scale in self.plain:
            return self.plain[scale]._full(task, exact, splits)
        return scale**2 * self.plain.get(1.0, self)._full(task, exact, splits)

    def _full(self, task: Task, exact: bool, splits: bool) -> float:
        if not task.backward:
            return (self.bp_forward if exact else self.gp_forward)[task.stage]
        whole = self.bp_backward[task.stage]
        if not splits:
            return whole
        weights = self.bp_weights[task.stage] if self.bp_weights else whole / 2
        return weights if task.weights else whole - weights

    def check(self, devices: int) -> None:
        """Refuse costs whose number of stages differs from the number of devices."""
        for name in ("bp_forward", "bp_backward", "gp_forward"):
            if len(getattr(self, name)) != devices:
                raise ValueError(f"{name}: has {len(getattr(self, name))} stages for {devices} devices; give one each")
        if len(self.bp_weights) not in (0, devices):
            raise ValueError(f"bp_weights: has {len(self.bp_weights)} stages for {devices} devices; give one each")
        for costs_at_scale in self.plain.values():
            costs_at_scale.check(devices)


def costs(
    devices: int,
    forward: float | Sequence[float] = 1,
    backward: float | Sequence[float] = 2,
    predictor: float | Sequence[float] = 0,
    communication: float = 0,
) -> Costs:
    """Costs as ADA-GP counts them (sections 3.7 and 6.5): a step is a forward, a backward takes two.

    The predictor adds `predictor` (the paper's alpha) to every forward and twice that to every backward, but not to
    those of coarse batches. All but `communication` may be given per stage.
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
    plain = {1.0: Costs(ahead, back, ahead)} if any(alpha) else {}
    return Costs(with_predictor, learning, with_predictor, communication, plain)


def _per_stage(name: str, value: float | Sequence[float], devices: int) -> tuple[float, ...]:
    if not isinstance(value, Sequence):
        return (value,) * devices
    if len(value) != devices:
        raise ValueError(f"{name}: {len(value)} values for {devices} stages; give one for all, or one for each")
    return tuple(value)
