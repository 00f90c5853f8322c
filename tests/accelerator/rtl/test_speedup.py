"""Speed-ups that were clocked on the RTL: how they are counted, and that they are clocked as they should be."""

from dataclasses import asdict

import numpy as np
import pytest

from adagp.accelerator import network
from adagp.accelerator.rtl import speedup
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.measure import LAYERS, SAMPLES, small_cores
from adagp.accelerator.rtl.speedup import CASES, Clocked, clock_cnn, clock_layer, speed_ups
from adagp.accelerator.rtl.verilated import has_verilator

CYCLES = {"baseline": (300, None), "low": (400, 100), "efficient": (350, 100), "max": (300, 50)}


def clocked(layer="a", **changes):
    """Batches of one layer on every design, as if they had been clocked."""
    for design, phase in CASES:
        cycles = CYCLES[design.value][phase.value == "GP"]
        values = {"cycles": cycles, "model_cycles": cycles, "no_stall_cycles": cycles // 2, **changes}
        yield Clocked("net", layer, 4, design.value, phase.value, bit_exact=True, **values)


def test_one_bp_and_one_gp_batch_are_compared_with_two_plain_ones():
    found = list(speed_ups([*clocked("a"), *clocked("b")]))
    assert [(each.part[1].layer, each.part[1].design) for each in found] == [
        (layer, design) for layer in "ab" for design in ("low", "efficient", "max")
    ]
    assert [each.rtl for each in found[:3]] == [pytest.approx(ratio) for ratio in (600 / 500, 600 / 450, 600 / 350)]
    assert found[0].model == found[0].rtl == pytest.approx(found[0].no_stalls)


def test_a_design_that_was_not_clocked_completely_is_left_out():
    assert [each.part[1].design for each in speed_ups(list(clocked())[:-1])] == ["low", "efficient"]


def test_plain_values_are_read_back_and_others_are_refused():
    batch = next(clocked())
    assert Clocked.of(asdict(batch)) == batch
    for wrong in ({**asdict(batch), "cycles": "300"}, {**asdict(batch), "more": 1}, {}):
        with pytest.raises(ValueError, match="is not a clocked batch"):
            Clocked.of(wrong)


@pytest.mark.parametrize(("design", "phase"), [CASES[0], CASES[-1]])
def test_a_batch_of_a_cnn_is_exact_and_takes_the_cycles_of_the_formulas(design, phase, monkeypatch):
    monkeypatch.setattr(speedup, "CNN", LAYERS)
    monkeypatch.setattr(speedup, "geometries", small_cores)
    monkeypatch.setattr("adagp.accelerator.rtl.simulators.has_verilator", lambda: False)
    monkeypatch.setattr(speedup, "initial_network", small_grid(speedup.initial_network))
    rng = np.random.default_rng(0)
    images, labels = rng.integers(-300, 300, (SAMPLES, 1, 4, 4)), rng.integers(0, 4, SAMPLES)
    found = clock_cnn(images, labels, design, phase, Timing(8, 2), pytest.fail)
    assert found.bit_exact
    assert found.cycles == found.model_cycles > found.no_stall_cycles > 0
    assert found.case == ("small-cnn", "whole", SAMPLES, design.value, phase.value)


def small_grid(initial):
    return lambda layers, samples, seed: initial(layers, samples, seed, grid=2)


@pytest.mark.slow
@pytest.mark.skipif(not has_verilator(), reason="needs verilator: apt-get install verilator")
@pytest.mark.parametrize(("design", "phase"), CASES)
def test_a_layer_is_exact_on_every_design(design, phase):
    op = network("vgg13", "cifar10", 1)[0]
    seen = []
    found = clock_layer("vgg13", op, design, phase, Timing(), lambda *at: seen.append(at), pytest.fail)
    assert found.bit_exact
    assert found.cycles == found.model_cycles
    assert seen[0] == (0, found.model_cycles)
    assert found.case == ("vgg13", op.name, 1, design.value, phase.value)
