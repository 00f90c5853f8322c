"""The setting of a simulated training: batch, epochs and machine, with their names in options, sweeps and files."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adagp.accelerator.machine import Machine
from adagp.accelerator.schedule import LEVELS, SCALE, method_schedule
from adagp.accelerator.shapes import require_count
from adagp.accelerator.simulation import Simulation, simulate
from adagp.accelerator.text import integer, parse_array
from adagp.accelerator.workload import LayerOp
from adagp.schedules import Schedule


@dataclass(frozen=True)
class Setting:
    """What every figure depends on and the paper does not state.

    Attributes:
        batch: Samples in a batch.
        epochs: Length of the training; 90 is the length of its figure 15.
        machine: The accelerator.
        method: The method of the training, one of `schedule.METHODS`.
        scale: For `coarse`, the fraction of their size that samples have in the cheap batches.
        levels: For `progressive`, pairs of a scale and its share of the training.
    """

    batch: int = 128
    epochs: int = 90
    machine: Machine = field(default_factory=Machine)
    method: str = "adagp"
    scale: float = SCALE
    levels: tuple[tuple[float, float], ...] = LEVELS

    def on(self, **changes: Any) -> "Setting":
        """The same training on a machine with some fields changed."""
        return replace(self, machine=replace(self.machine, **changes))

    def schedule(self) -> tuple[Schedule, int]:
        """The schedule that would drive the training, and its steps."""
        return method_schedule(self.method, self.epochs, self.scale, self.levels)

    def simulate(self, network_of: Callable[[int], Sequence[LayerOp]]) -> Simulation:
        """Simulate the training on every design; `network_of` gives the operations of a batch size."""
        return simulate(network_of(self.batch), *self.schedule(), self.machine)


@dataclass(frozen=True)
class _Key:
    """The type of a setting's value, and how it changes the setting."""

    kind: type
    change: Callable[[Setting, Any], Setting]


def _memory(name: str) -> Callable[[Setting, int], Setting]:
    """Both arrays have the same memories."""

    def change(setting: Setting, words: int) -> Setting:
        machine = setting.machine
        return setting.on(
            array=replace(machine.array, **{name: words}), second_array=replace(machine.second_array, **{name: words})
        )

    return change


def _predictor(name: str) -> Callable[[Setting, int], Setting]:
    return lambda setting, value: setting.on(predictor=replace(setting.machine.predictor, **{name: value}))


def _bandwidth(setting: Setting, words: int) -> Setting:
    require_count("bandwidth", words)
    return setting.on(dram_words_per_cycle=words)


def _latency(setting: Setting, cycles: int) -> Setting:
    require_count("latency", cycles)
    return setting.on(dram_latency_cycles=cycles)


_TRAINING: Mapping[str, _Key] = {
    "batch": _Key(int, lambda setting, value: replace(setting, batch=value)),
    "epochs": _Key(int, lambda setting, value: replace(setting, epochs=value)),
}
_MACHINE: Mapping[str, _Key] = {
    "array": _Key(str, lambda setting, text: setting.on(array=parse_array("array", text, setting.machine.array))),
    "second-array": _Key(
        str,
        lambda setting, text: setting.on(second_array=parse_array("second-array", text, setting.machine.second_array)),
    ),
    "dataflow": _Key(str, lambda setting, name: setting.on(dataflow=name)),
    "buffer-words": _Key(int, _memory("buffer_words")),
    "register-words": _Key(int, _memory("register_words")),
    "bandwidth": _Key(int, _bandwidth),
    "latency": _Key(int, _latency),
    "policy": _Key(str, lambda setting, name: setting.on(policy=name)),
    "grid": _Key(int, _predictor("grid")),
    "channels": _Key(int, _predictor("channels")),
    "vector-lanes": _Key(int, lambda setting, lanes: setting.on(vector_lanes=lanes)),
    "stalls": _Key(bool, lambda setting, stalls: setting.on(stalls=stalls)),
    "tiles": _Key(bool, lambda setting, tiles: setting.on(tiles=tiles)),
}
_KEYS = {**_TRAINING, **_MACHINE}
MACHINE_KEYS = tuple(_MACHINE)
"""Names that describe a machine, as options and as keys of a machine file."""
SWEPT = tuple(name for name, key in _KEYS.items() if key.kind is not bool)
"""Names that a sweep may change."""


def changed(setting: Setting, name: str, value: object) -> Setting:
    """The setting with one named value changed.

    Raises:
        ValueError: If the value is not allowed; the message names it.
    """
    return _KEYS[name].change(setting, value)


def changed_by_text(setting: Setting, name: str, text: str) -> Setting:
    """The setting with one named value changed, given as text.

    Raises:
        ValueError: If the value is not allowed; the message names it.
    """
    return changed(setting, name, integer(name, text) if _KEYS[name].kind is int else text)


_TYPES = {int: "an integer", str: "a text", bool: "true or false"}


def read_machine(path: Path) -> Machine:
    """The machine that a TOML file describes; a missing key has the default of `Machine`.

    Raises:
        ValueError: If the file cannot be read, a key is unknown, or a value is not allowed.
    """
    try:
        content = path.read_bytes() if path.is_file() else None  # a pipe would keep its reader waiting
    except OSError as error:
        raise ValueError(f"machine: '{path}' cannot be read: {error.strerror}; check the path") from error
    if content is None:
        raise ValueError(f"machine: '{path}' is not a file; check the path")
    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise ValueError(f"machine: '{path}' is not TOML: {error}; write lines such as array = \"12x15\"") from error
    setting = Setting()
    for name, value in values.items():
        if name not in _MACHINE:
            raise ValueError(f"machine: '{path}': {name!r} is unknown; known keys: {', '.join(MACHINE_KEYS)}")
        kind = _MACHINE[name].kind
        if type(value) is not kind:  # a bool is an int to isinstance
            raise ValueError(f"machine: '{path}': {name} = {value!r} is not {_TYPES[kind]}")
        try:
            setting = changed(setting, name, value)
        except ValueError as error:
            raise ValueError(f"machine: '{path}': {error}") from error
    return setting.machine
