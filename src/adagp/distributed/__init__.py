"""Several processes: ranks that share a batch, and pipelines whose ranks share a model."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.distributed.pipeline import Pipeline, stage_of

__all__ = ["Pipeline", "stage_of"]

__getattr__ = lazily(__name__, {"Pipeline": "adagp.distributed.pipeline", "stage_of": "adagp.distributed.pipeline"})
