"""A separate random state for each run in a process."""

from types import TracebackType
from typing import Any

import torch
from torch import Tensor


class RandomState:
    """The random state of one run, in force inside `with`.

    Runs that advance in turns in one process must not see each other's random numbers, or interleaving and resuming
    would change results.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """`device` is the run's. If it has a generator of its own, that is separate too."""
        module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._device, self._module = device, module
        outside = self._read()
        torch.manual_seed(seed)
        self._inside = self._read()
        self._write(outside)
        self._outside: list[Tensor] = []

    def __enter__(self) -> None:
        """Put this run's state in force."""
        self._outside = self._read()
        self._write(self._inside)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep this run's state and restore the outer one."""
        self._inside = self._read()
        self._write(self._outside)

    def state_dict(self) -> dict[str, Any]:
        """The generators' states; call it outside of `with`."""
        return {"states": list(self._inside)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned on the same kind of device."""
        self._inside = list(state["states"])

    def _read(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self._module is not None:
            states.append(self._module.get_rng_state(self._device))
        return states

    def _write(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._module is not None:
            self._module.set_rng_state(states[1], self._device)
