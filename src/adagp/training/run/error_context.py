"""One line for what PyTorch, the engine and the model refuse: where it happened, why, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from adagp import NonFiniteError
from adagp.training.errors import DivergedError, TrainingError
from adagp.training.recipe import Recipe


@contextmanager
def error_context(place: str, recipe: Recipe) -> Iterator[None]:
    """Turn errors raised inside into a `TrainingError` that begins with `place`.

    Raises:
        DivergedError: When a number is not finite.
        TrainingError: For any other refusal.
    """
    try:
        yield
    except TrainingError:
        raise
    except NonFiniteError as error:
        raise DivergedError(f"{place}: {error}") from error
    except (RuntimeError, MemoryError, ValueError) as error:
        text = str(error).strip() or type(error).__name__
        first_line = text.splitlines()[0]
        if isinstance(error, distributed.DistError) or "gloo" in text:
            raise TrainingError(
                f"{place}: another rank stopped or hangs, see its own message; all saved files are complete, and "
                f"--resume continues from them ({first_line})"
            ) from error
        raise TrainingError(f"{place}: {first_line}{_remedy(error, text, recipe)}") from error


def _remedy(error: Exception, text: str, recipe: Recipe) -> str:
    if recipe.channels_last and "view size is not compatible" in text:  # torch itself suggests reshape
        return "; or set channels_last=false: a view needs images in the other memory layout"
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return "; there is not enough memory: lower batch_size or use a smaller model"
    return ""
