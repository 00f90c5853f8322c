"""Several processes: ranks that share a batch, and pipelines whose ranks share a model."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.distributed.lost import LostRankError
    from adagp.distributed.pipeline import LostStageError, Pipeline, stage_of

__all__ = ["LostRankError", "LostStageError", "Pipeline", "stage_of"]

__getattr__ = lazily(
    __name__, {**dict.fromkeys(__all__, "adagp.distributed.pipeline"), "LostRankError": "adagp.distributed.lost"}
)
