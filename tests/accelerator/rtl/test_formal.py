"""Every property holds, and fails if the unit is broken."""

import inspect
from types import ModuleType

import pytest

from adagp.accelerator.rtl import controller, dispatcher, drainer, formal, loader
from adagp.accelerator.rtl.formal import PROPERTIES, prove


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_the_property_holds(name):
    wanted = PROPERTIES[name]
    assert prove(wanted.build(), wanted.cycles)


def broken(module: ModuleType, unit: str, right: str, wrong: str) -> type:
    """The class of a unit from its source with one expression replaced."""
    source = inspect.getsource(module)
    assert source.count(right) == 1, right
    names: dict[str, object] = {"__name__": module.__name__}
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), names)
    return names[unit]


FAULTS = {
    "a load that takes an answer before all its words are written": (
        "loader: nothing lost under back-pressure",
        loader,
        "Loader",
        "self.answers.ready.eq(last_word)",
        "self.answers.ready.eq(1)",
    ),
    "a load that ends with answers outstanding": (
        "loader: nothing lost under back-pressure",
        loader,
        "Loader",
        "takes & asked & (outstanding == 1)",
        "takes & asked",
    ),
    "a drain that goes on while DRAM waits": (
        "drainer: nothing lost under back-pressure",
        drainer,
        "Drainer",
        "self.advances.eq(~valid_2 | self.writes.ready)",
        "self.advances.eq(1)",
    ),
    "a drain that is done too early": (
        "drainer: nothing lost under back-pressure",
        drainer,
        "Drainer",
        "self.writes.valid & self.writes.ready & ~valid_1",
        "self.writes.valid & self.writes.ready",
    ),
    "a dispatcher that loses tokens": (
        "dispatcher: tokens never block",
        dispatcher,
        "Dispatcher",
        "count.eq(count + given[pair] - taken[pair])",
        "count.eq(count & ~taken[pair])",
    ),
    "a dispatcher that drops what a unit does not take at once": (
        "dispatcher: order, nothing lost",
        dispatcher,
        "Dispatcher",
        "queue.r_en.eq(starts)",
        "queue.r_en.eq(1)",
    ),
    "a dispatcher that takes what a full queue cannot hold": (
        "dispatcher: order, nothing lost",
        dispatcher,
        "Dispatcher",
        "& ~barrier & queue.w_rdy)",
        "& ~barrier)",
    ),
    "a controller that misses the last fold": (
        "controller: a product ends",
        controller,
        "Controller",
        "n != now.n_folds - 1",
        "n != now.n_folds",
    ),
}
QUICK = ("a drain that goes on while DRAM waits", "a load that ends with answers outstanding")


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAULTS]
)
def test_a_broken_unit_fails(fault, monkeypatch):
    name, module, unit, right, wrong = FAULTS[fault]
    monkeypatch.setattr(formal, unit, broken(module, unit, right, wrong))
    assert not prove(PROPERTIES[name].build(), PROPERTIES[name].cycles)
