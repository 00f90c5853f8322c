"""`AdaGP` on the subject while it is measured: batches under any plan, and the gradients they give."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from adagp._engine.engine import AdaGP
from adagp._engine.statistics import kept_statistics
from adagp.advice.messages import buffer_bytes, gradient_bytes
from adagp.advice.subject import Subject
from adagp.layers import Layer
from adagp.schedules import Phase, Plan, from_function
from adagp.schedules.sources import specs

BP = Plan(Phase.BP, "backprop")
COARSE_SCALE = 0.5
Gradient = dict[str, Tensor]
"""A layer's gradient as one vector, by the layer's name; layers without one are absent."""


class Attached:
    """Runs batches of a subject under a plan of our choice."""

    def __init__(self, subject: Subject) -> None:
        """Hook in; `remove` takes the hooks out.

        Raises:
            ValueError: When AdaGP cannot be attached to the model.
        """
        self.subject = subject
        self.plan = BP
        names = [name for name in specs() if name not in ("random", "local")]
        schedule = from_function(lambda step: self.plan, names)
        with _without_warnings():
            self.gp = AdaGP(subject.model, subject.optimizer, schedule, stop_on_nonfinite=False)

    @property
    def layers(self) -> list[Layer]:
        """The covered layers, in the order of the model."""
        return list(self.gp._setup.layers)

    def plan_of(self, source: str) -> Plan | None:
        """The plan that gives a source every layer it can serve; None where it serves none."""
        spec, supplier = specs()[source], self.gp.sources[source]
        if not spec.needs_backward:
            return Plan(Phase.GP, source)
        if not self.mixes_sources:
            return None
        shared = self.gp._setup.shared
        refused = [layer.name for layer in self.layers if supplier.refuse(layer) or layer.name in shared]
        if len(refused) == len(self.layers):
            return None
        return Plan(Phase.BP, source, dict.fromkeys(refused, "backprop"))

    @property
    def mixes_sources(self) -> bool:
        """Whether a batch with a backward may leave some layers out of it."""
        return self.gp._setup.ranks.mixes_sources

    def sent_bytes(self, plan: Plan) -> int | None:
        """What a rank sends in a batch under a plan, which is run; None where there is no other rank."""
        model, ranks = self.subject.model, self.gp._setup.ranks
        if ranks.count == 1:
            return None
        before = ranks.sent_bytes
        self.step(plan)
        gradients = 0 if plan.phase is Phase.GP else gradient_bytes(model)
        return ranks.sent_bytes - before + gradients + buffer_bytes(model)

    def takes(self, scale: float) -> bool:
        """Whether the loss can be computed at a scale, and means the same: the model's output keeps its shape."""
        if self.subject.takes_scale:
            return True
        shapes: list[object] = []

        def note(_: nn.Module, inputs: object, output: object) -> None:
            del inputs
            shapes.append(tuple(output.shape) if isinstance(output, Tensor) else None)

        hook = self.subject.model.register_forward_hook(note)
        try:
            with torch.no_grad(), kept_statistics(self.subject.model):
                self.subject.loss_of(0, 1.0)
                self.subject.loss_of(0, scale)
        except Exception:
            return False  # no images, or sizes that the model cannot take
        finally:
            hook.remove()
        return None not in shapes and len(set(shapes)) == 1

    def step(self, plan: Plan, index: int = 0) -> None:
        """One whole batch under a plan."""
        self.plan = plan
        self.gp.step(lambda scale: self.subject.loss_of(index, scale))

    def gradient(self, plan: Plan, index: int = 0) -> Gradient:
        """The gradient of a batch under a plan; weights, running statistics and random states stay."""
        self.plan = plan
        with kept_statistics(self.subject.model), torch.random.fork_rng():
            torch.manual_seed(index)  # dropout draws the same for every source
            with self.gp.batch() as batch:
                batch.backward(self.subject.loss_of(index, batch.scale))
        found = {layer.name: _vector(layer) for layer in self.layers if layer.weight.grad is not None}
        self.subject.optimizer.zero_grad(set_to_none=True)
        return found

    def remove(self) -> None:
        """Take the hooks out."""
        self.gp.remove()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """What a plan leaves uncovered shows in its measured worth; nobody has chosen one yet."""
    logger = logging.getLogger("adagp")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _vector(layer: Layer) -> Tensor:
    """The gradient of a layer's parameters as one vector of its own memory; 0 where one has none."""
    grads = (torch.zeros_like(part) if part.grad is None else part.grad for part in layer.parameters())
    return torch.cat([grad.detach().float().flatten() for grad in grads])


@contextmanager
def attached(subject: Subject) -> Iterator[Attached]:
    """Inside, `AdaGP` is attached to the subject."""
    found = Attached(subject)
    try:
        yield found
    finally:
        found.remove()
