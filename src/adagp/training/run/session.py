"""What every function that trains is given: who watches, what may stop it, and how often it saves."""

from dataclasses import dataclass, field

from adagp.training.run.interrupt import Interrupt
from adagp.training.run.observers import Observer

CHECKPOINT_SECONDS = 30.0
"""The longest time between two checkpoints."""


@dataclass(frozen=True)
class Session:
    """How a run, or several in turn, are watched, stopped and saved.

    Attributes:
        observer: Receives every batch, epoch and message.
        interrupt: Asks to stop; the run is saved first.
        checkpoint_seconds: The longest time between two checkpoints.
    """

    observer: Observer = field(default_factory=Observer)
    interrupt: Interrupt = field(default_factory=Interrupt)
    checkpoint_seconds: float = CHECKPOINT_SECONDS
