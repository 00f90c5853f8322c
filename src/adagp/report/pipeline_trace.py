"""A simulated pipeline as a Chrome trace, for Perfetto and chrome://tracing."""

from typing import Any

from adagp.accelerator.pipeline import Timeline
from adagp.report.pipeline_grid import PASSES, letter, number

STEP_MICROSECONDS = 1000
"""Such viewers know seconds, not steps: a step is shown as a millisecond."""


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """An object in the Trace Event Format: a process per pipeline, a thread per device, a complete event per slot."""
    pipeline = timeline.pipeline
    names = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": pipeline.scheme}}]
    threads = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": device, "args": {"name": f"device {device}"}}
        for device in range(pipeline.devices)
    ]
    events = [
        {
            "name": f"{letter(timeline, slot)}{number(timeline, slot)}",
            "cat": PASSES[letter(timeline, slot)][0],
            "ph": "X",
            "pid": 0,
            "tid": slot.device,
            "ts": slot.start * STEP_MICROSECONDS,
            "dur": (slot.end - slot.start) * STEP_MICROSECONDS,
            "args": {
                "phase": pipeline.phases[slot.task.batch].value,
                "batch": slot.task.batch,
                "micro_batch": slot.task.micro_batch,
                "stage": slot.task.stage,
            },
        }
        for slot in timeline.slots
    ]
    return {"traceEvents": [*names, *threads, *events], "displayTimeUnit": "ms"}
