"""Local losses: where a network is cut, what each part's head computes, and the loss of its output.

The source `local` puts them to use; a stage of a pipeline can take heads and cuts from here as well.
"""

from adagp.local.cuts import Trace, choose, problems, trace
from adagp.local.heads import HEADS, Head, build
from adagp.local.losses import Loss, cross_entropy

__all__ = ["HEADS", "Head", "Loss", "Trace", "build", "choose", "cross_entropy", "problems", "trace"]
