"""Selective backpropagation: samples that the network already gets right are left out of the backward.

Jiang et al., Accelerating Deep Learning by Focusing on the Biggest Losers, arXiv 1910.00762. The span of the run and
the share of samples are the defaults of MosaicML's Composer.
"""

import torch
from torch import Tensor, nn

from adagp.training.rivals.rival import Rival, TrainingBatch, with_samples
from adagp.training.tasks import Task

START, END = 0.5, 0.9
KEPT = 0.5


class Selective(Rival):
    """From half of the run until nine tenths, a forward without a graph ranks the batch, and half of it is trained on.

    Samples are drawn with probabilities in proportion to the rank of their loss.
    """

    stages = ((0.0, 1 - (END - START)), (START, END - START))

    def begin(self, task: Task, model: nn.Module, seed: int, total_steps: int) -> None:
        """Check that samples can be ranked."""
        self._task = with_samples(task, "selective")

    def loss(self, batch: TrainingBatch) -> Tensor:
        """The mean loss of the samples drawn."""
        if not START <= batch.progress < END:
            return super().loss(batch)
        with torch.no_grad():
            losses = self._task.sample_losses(batch.network, batch.data, batch.device)
        ranks = losses.argsort().argsort() + 1.0
        kept = torch.multinomial(ranks.cpu(), max(1, round(KEPT * len(ranks)))).sort().values
        return self._task.sample_losses(batch.network, self._task.take(batch.data, kept), batch.device).mean()
