"""The timeline: every task starts as early as its device's order and its dependencies allow."""

from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.pipeline.order import device_orders
from adagp.accelerator.pipeline.tasks import Pipeline, Task


@dataclass(frozen=True)
class Slot:
    """A task with its device and times.

    Attributes:
        task: The task.
        device: The device that does it.
        start: When it starts.
        end: When it ends.
    """

    task: Task
    device: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A simulated pipeline.

    Attributes:
        pipeline: The simulated pipeline.
        devices: The slots of each device, in order of time.
    """

    pipeline: Pipeline
    devices: tuple[tuple[Slot, ...], ...]

    @property
    def slots(self) -> list[Slot]:
        """All slots, device by device."""
        return [slot for row in self.devices for slot in row]

    @property
    def steps(self) -> float:
        """The time until everything is done, in the unit of the costs."""
        return max(slot.end for slot in self.slots)

    @property
    def busy(self) -> float:
        """The share of time in which devices work; the rest are bubbles."""
        return sum(slot.end - slot.start for slot in self.slots) / (self.steps * self.pipeline.devices)

    @property
    def bubbles(self) -> float:
        """The time that devices are idle, of all devices together."""
        return self.steps * self.pipeline.devices - sum(slot.end - slot.start for slot in self.slots)

    @property
    def held(self) -> tuple[int, ...]:
        """For each device, the largest number of micro-batches whose activations it holds for a later backward."""
        return tuple(self._most_held(row) for row in self.devices)

    def _most_held(self, row: tuple[Slot, ...]) -> int:
        held = most = 0
        for slot in row:
            if slot.task.weights or (slot.task.backward and not self.pipeline.splits_backward):
                held -= 1
            elif slot.task.backward:
                continue
            elif self.pipeline.has_backward(slot.task.batch):
                held += 1
            most = max(most, held)
        return most


def simulate(pipeline: Pipeline, costs: Costs) -> Timeline:
    """Run a pipeline from the first batch to the last.

    Raises:
        ValueError: If the number of stages in the costs differs from the number of devices.
    """
    costs.check(pipeline.devices)
    orders = device_orders(pipeline)
    needs = {task: pipeline.needs(task) for order in orders for task in order}
    earlier = {later: task for order in orders for task, later in pairwise(order)}
    graph = {task: [*need, earlier[task]] if task in earlier else need for task, need in needs.items()}
    slots: dict[Task, Slot] = {}
    for task in TopologicalSorter(graph).static_order():
        device = pipeline.device_of(task)
        start = slots[earlier[task]].end if task in earlier else 0
        for need in needs[task]:
            message = costs.communication if slots[need].device != device else 0
            start = max(start, slots[need].end + message)
        slots[task] = Slot(task, device, start, start + costs.of(task, pipeline))
    return Timeline(pipeline, tuple(tuple(slots[task] for task in order) for order in orders))
