"""Names of a package that are imported when first used, so that who needs no torch does not wait for it."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live elsewhere.

    A name must not be that of a submodule of the package as well, unless it means that submodule: importing the
    submodule would hide it.

    Args:
        package: `__name__` of the package.
        homes: For each name the module that has it, or that it is.
    """

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get
