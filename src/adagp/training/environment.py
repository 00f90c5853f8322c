"""The machine and software that a measurement was made with; nothing identifies the user or the host."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("adagp", "torch", "numpy", "matplotlib", "typer", "rich")


def describe(device: torch.device, threads: int | None = None) -> dict[str, Any]:
    """Versions, processor and threads: what a reader needs to judge seconds.

    `threads` is the recipe's choice; None means PyTorch's own.
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "device": device.type,
        "device_name": _processor()
        if device.type == "cpu"
        else torch.get_device_module(device).get_device_name(device),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that this code runs from; None for an installed package."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
