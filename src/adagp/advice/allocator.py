"""Settings of the memory allocator, which act when a process starts."""

import ctypes.util
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EnvironmentOption:
    """Variables to set before Python starts."""

    name: str
    variables: Mapping[str, str]

    @property
    def code(self) -> tuple[str, ...]:
        """The line for the shell."""
        return (f"export {' '.join(f'{name}={value}' for name, value in self.variables.items())}  # in the shell",)


KEEP_MEMORY = EnvironmentOption(
    "keep memory", {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}
)
"""glibc returns the memory of a backward to the system and asks for it again in the next batch; this stops it."""
_LIBRARIES = {"tcmalloc": ("tcmalloc_minimal", "tcmalloc"), "jemalloc": ("jemalloc",)}


def environment_options() -> list[EnvironmentOption]:
    """What can be tried on this machine and is not set yet."""
    if platform.libc_ver()[0] != "glibc" or "LD_PRELOAD" in os.environ:
        return []
    found = [] if KEEP_MEMORY.variables.keys() & os.environ.keys() else [KEEP_MEMORY]
    for name, libraries in _LIBRARIES.items():
        path = next(filter(None, map(ctypes.util.find_library, libraries)), None)
        if path is not None:
            found.append(EnvironmentOption(name, {"LD_PRELOAD": path}))
    return found
