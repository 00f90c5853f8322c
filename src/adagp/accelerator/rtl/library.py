"""How components become a design: submodules in simulation, one shared module per kind in synthesis.

Amaranth writes out every submodule separately, so 180 equal PEs would be synthesised 180 times. With a `Library` as the
platform, a component is written once under its name and instantiated wherever it is placed.
"""

import re
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib.wiring import Component, Flow

_CLOCKING = {"clk": ClockSignal, "rst": ResetSignal}


class Library:
    """The modules of a design, each converted once."""

    def __init__(self) -> None:
        """Start empty."""
        self._kinds: dict[tuple[Any, ...], Component] = {}
        self._texts: dict[str, str] = {}

    def modules(self, top: Component) -> dict[str, str]:
        """The RTLIL of every module of a design by name, `top` the last."""
        text = rtlil.convert(top, name=top.module_name, platform=self, emit_src=False)
        return {name: _plain(part) for name, part in [*self._texts.items(), (top.module_name, text)]}

    def instance(self, kind: type[Component], *arguments: Any) -> tuple[Instance, Any]:
        """An instance of the module of a kind of component, and the signals it is connected to."""
        key = (kind, *arguments)
        if key not in self._kinds:
            self._kinds[key] = component = kind(*arguments)
            name = component.module_name
            self._texts[name] = rtlil.convert(component, name=name, platform=self, emit_src=False)
        component = self._kinds[key]
        interface = component.signature.create()
        ports: dict[str, Any] = {
            f"i_{port}": signal()
            for port, signal in _CLOCKING.items()
            if re.search(rf" input \d+  ?\\{port}$", self._texts[component.module_name], re.MULTILINE)
        }
        for path, member, signal in component.signature.flatten(interface):
            ports[f"{'o' if member.flow is Flow.Out else 'i'}_{'__'.join(map(str, path))}"] = signal
        return Instance(component.module_name, **ports), interface


def _plain(text: str) -> str:
    """Remove the mark of a top module, which every separately converted module has."""
    return text.replace("attribute \\top 1\n", "")


class Parts:
    """The components of a design by the names that lead to them; as the platform, it makes a design for simulation."""

    def __init__(self, top: Component) -> None:
        """A design that is not elaborated yet."""
        self.found: dict[tuple[str, ...], Component] = {(): top}
        self._inside: tuple[str, ...] = ()

    def add(self, name: str, component: Component) -> None:
        """Remember a component of the one that is being elaborated."""
        path, elaborate = (*self._inside, name), component.elaborate
        self.found[path] = component

        def elaborated(platform: Any) -> Any:
            self._inside = path  # a component places all its parts before they are elaborated
            return elaborate(platform)

        component.elaborate = elaborated


def place(module: Module, name: str, platform: Library | Parts | None, kind: type[Component], *arguments: Any) -> Any:
    """Put a component into a module; returns its ports, ready to be connected."""
    if not isinstance(platform, Library):
        module.submodules[name] = component = kind(*arguments)
        if platform is not None:
            platform.add(name, component)
        return component
    module.submodules[name], interface = platform.instance(kind, *arguments)
    return interface
