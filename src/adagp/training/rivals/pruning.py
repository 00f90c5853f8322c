"""Pruning of easy samples, epoch by epoch, with the gradient kept unbiased: after InfoBatch.

Qin et al., InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning, ICLR 2024, arXiv 2303.04947. They
prune below the mean loss; here it is the median, so that the cost of a batch is known before. Batches shrink and are
not refilled.
"""

from typing import Any

import torch
from torch import Tensor, nn

from adagp.data.order import generator
from adagp.training.rivals.rival import Rival, TrainingBatch, with_samples
from adagp.training.tasks import Task

PRUNED = 0.5
"""The share of the samples below the median that an epoch leaves out."""
END = 0.875


class Pruning(Rival):
    """Leaves out a quarter of the samples: half of those whose last loss was below the median.

    The other easy samples count twice, so that the gradient is right on average. The last eighth of the run uses all
    samples. The score of a sample that was not seen yet is a random number.
    """

    stages = ((0.0, END), (END, 1 - END))

    def begin(self, task: Task, model: nn.Module, seed: int, total_steps: int) -> None:
        """Draw the first scores."""
        self._task = with_samples(task, "pruning")
        self._seed, self._epoch = seed, -1
        self._scores = torch.rand(self._task.train_items, generator=generator(seed, 1))
        self._factors = torch.ones(self._task.train_items)

    def loss(self, batch: TrainingBatch) -> Tensor:
        """The estimate of the whole batch's mean loss from the samples that are left."""
        if batch.progress >= END:
            return super().loss(batch)
        if batch.epoch != self._epoch:
            self._prune(batch.epoch)
        members = self._task.members(batch.epoch, batch.index)
        factors = self._factors[members]
        left = factors.nonzero().flatten()
        if not len(left):
            return super().loss(batch)
        losses = self._task.sample_losses(batch.network, self._task.take(batch.data, left), batch.device)
        self._scores[members[left]] = losses.detach().float().cpu()
        return (losses * factors[left].to(losses)).sum() / len(members)

    def _prune(self, epoch: int) -> None:
        """Give every sample its factor in this epoch: 0 for those left out."""
        easy = (self._scores < self._scores.median()).nonzero().flatten()
        order = torch.randperm(len(easy), generator=generator(self._seed, epoch, 1))
        out = round(PRUNED * len(easy))
        self._factors = torch.ones(len(self._scores))
        self._factors[easy] = 1 / (1 - PRUNED)
        self._factors[easy[order[:out]]] = 0.0
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Scores, and the factors of the current epoch, which earlier scores decided."""
        return {"scores": self._scores, "factors": self._factors, "next_epoch": self._epoch + 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the middle of an epoch."""
        self._scores, self._factors = state["scores"].cpu(), state["factors"].cpu()
        self._epoch = int(state["next_epoch"]) - 1
