"""Advice: what would make a training faster or smaller on this machine, measured, "nothing" included.

How it is built, in the order of one call of `advise`:

1. `study` is the call itself, and `budget` shares out its seconds. `subject` checks the arguments, and `checking` the
   first batch. `kept` takes a snapshot of model, optimizer and random states, and puts everything back at the end, bit
   for bit: a closure knows only the user's own model, so no copy can be used.
2. `exact`, `checkpointing` and `compiled` list what leaves the gradients exact, and `exact_study` measures it: every
   option by itself, then together what pays. `rounds` lets the options and the training as it is take turns, in a
   random order, and `estimate` turns the rounds into a ratio with an interval. The learning rate rests. `allocator`
   lists what acts when a process starts, `process` runs the same training in others, and `environments` measures it.
3. `sources` puts `AdaGP` on the model, by way of `attached`. After a warm-up at the user's learning rate `layers`
   measures where the time goes, `agreement` compares the gradient of every source and of coarse batches with the exact
   one, and `rounds` measures their time. Where ranks share the model, `messages` gives them one clock, and says what
   they send and how long it takes.
4. `schedules.breakeven` says how much progress a gradient has to keep for the time it saves, `plan` chooses by it,
   and the plan is measured as a whole. `option` and `result` hold the findings, `verdict` puts them into words.
"""

from adagp.advice.errors import AdviceError
from adagp.advice.estimate import Estimate
from adagp.advice.messages import MessagesFinding
from adagp.advice.option import Option
from adagp.advice.result import Advice, LayerFinding, PlanFinding, SourceFinding
from adagp.advice.study import advise

__all__ = [
    "Advice",
    "AdviceError",
    "Estimate",
    "LayerFinding",
    "MessagesFinding",
    "Option",
    "PlanFinding",
    "SourceFinding",
    "advise",
]
