"""What a network is trained for. A run knows a task, not a data set."""

from adagp.training.tasks.registry import build
from adagp.training.tasks.task import Evaluation, Metric, SampleTask, Task

__all__ = ["Evaluation", "Metric", "SampleTask", "Task", "build"]
