"""The order in which each device does its tasks: GPipe, DAPPLE, Chimera, a zero-bubble pipeline and local losses.

- GPipe (Huang et al., NeurIPS 2019): all forwards of a batch, then all backwards, both from the first micro-batch on.
- DAPPLE (Fan et al., PPoPP 2021): stage s first does as many forwards as there are stages from it to the end, then a
  backward and a forward in turns.
- Chimera (Li and Hoefler, SC 2021): two such pipelines in opposite directions, merged on every device.
- Zero bubble (Qi et al., ICLR 2024, arXiv 2401.10241), as ZB-H1, which holds no more activations than DAPPLE: DAPPLE
  whose backward is split. Stage s delays the gradients of its weights by s micro-batches, and does those that are left
  when its other work is done.
- Local losses: a forward and a backward in turns on every stage.

GP batches have forwards only. The order does not depend on the costs of the stages.
"""

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise

from adagp.accelerator.pipeline.tasks import Pipeline, Task


def device_orders(pipeline: Pipeline) -> list[list[Task]]:
    """The tasks of each device, in the order in which it does them."""
    streams = [
        [_stream(pipeline, device, replica) for replica in range(len(pipeline.shares))]
        for device in range(pipeline.devices)
    ]
    return _merge(pipeline, streams) if pipeline.scheme == "chimera" else [stream for (stream,) in streams]


def _stream(pipeline: Pipeline, device: int, replica: int) -> list[Task]:
    """A device's tasks for one replica, batch after batch: a stage has one version of its weights at a time."""
    stage = pipeline.stage_of(device, replica)
    share = pipeline.shares[replica]
    stream = []
    for batch in range(len(pipeline.phases)):
        forwards = [Task(False, batch, micro_batch, stage, replica) for micro_batch in share]
        backwards = [task._replace(backward=True) for task in forwards] if pipeline.has_backward(batch) else []
        ahead = min(len(forwards), pipeline.devices - stage)
        if pipeline.scheme in _AHEAD:
            ahead = _AHEAD[pipeline.scheme] or len(forwards)
        weights = [task._replace(weights=True) for task in backwards] if pipeline.splits_backward else []
        stream += _in_turns(forwards, backwards, ahead, weights, stage)
    return stream


_AHEAD = {"gpipe": None, "local": 1}
"""How many forwards come before the first backward, where that does not depend on the stage; None for all."""


def _in_turns(
    forwards: Sequence[Task], backwards: Sequence[Task], ahead: int, weights: Sequence[Task], delay: int
) -> list[Task]:
    """`ahead` forwards, then a backward and a forward in turns until both are used up.

    Where the backward is split, the gradients of the weights follow `delay` backwards later, and the rest at the end.
    """
    turns = list(forwards[:ahead])
    for place, backward in enumerate(backwards):
        turns.append(backward)
        turns += weights[place - delay : place - delay + 1] if place >= delay else []
        turns += forwards[ahead + place : ahead + place + 1]
    turns += weights[max(len(backwards) - delay, 0) :]
    return turns if backwards else list(forwards)


def _merge(pipeline: Pipeline, streams: Sequence[Sequence[list[Task]]]) -> list[list[Task]]:
    """Merge the two streams of each device: the task that can start first, and among equals the most urgent.

    Stages count as equal, a backward takes as long as two forwards, and messages take no time. So the order is a
    property of the scheme and not of the network.
    """
    needs = {task: pipeline.needs(task) for pair in streams for stream in pair for task in stream}
    remaining = _remaining(needs, [stream for pair in streams for stream in pair])
    merged: list[list[Task]] = [[] for _ in streams]
    ends: dict[Task, int] = {}
    free = [0] * pipeline.devices
    places = [[0] * len(pair) for pair in streams]
    ready: list[tuple[int, int, int, int, Task]] = []
    waiting: dict[Task, list[tuple[int, int]]] = {}

    def offer(device: int, replica: int) -> None:
        """Queue the next task of a stream, or let it wait for one that is not done."""
        stream, place = streams[device][replica], places[device][replica]
        if place < len(stream):
            task = stream[place]
            missing = next((need for need in needs[task] if need not in ends), None)
            if missing is None:
                heappush(ready, (start_of(device, task), -remaining[task], device, replica, task))
            else:
                waiting.setdefault(missing, []).append((device, replica))

    def start_of(device: int, task: Task) -> int:
        return max([free[device], *(ends[need] for need in needs[task])])

    for device, pair in enumerate(streams):
        for replica in range(len(pair)):
            offer(device, replica)
    while ready:
        start, rank, device, replica, task = heappop(ready)
        if (later := start_of(device, task)) > start:  # the device has taken another task since
            heappush(ready, (later, rank, device, replica, task))
            continue
        ends[task] = free[device] = start + _nominal(task)
        places[device][replica] += 1
        merged[device].append(task)
        for place in ((device, replica), *waiting.pop(task, ())):
            offer(*place)
    return merged


def _remaining(needs: Mapping[Task, list[Task]], streams: Sequence[Sequence[Task]]) -> dict[Task, int]:
    """For every task, the length of the longest chain of tasks that it begins."""
    before = {task: list(need) for task, need in needs.items()}
    for stream in streams:
        for earlier, later in pairwise(stream):
            before[later].append(earlier)
    remaining = {task: _nominal(task) for task in before}
    for task in reversed(list(TopologicalSorter(before).static_order())):
        for need in before[task]:
            remaining[need] = max(remaining[need], _nominal(need) + remaining[task])
    return remaining


def _nominal(task: Task) -> int:
    return 2 if task.backward else 1
