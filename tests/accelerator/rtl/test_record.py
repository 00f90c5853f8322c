"""The cycles that were clocked and recorded are those that the compiler and the formulas give today."""

import json
from pathlib import Path

import pytest

from adagp.accelerator import Design, network
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.layer_run import layer_program
from adagp.accelerator.rtl.no_stalls import layer_ops, no_stall_cycles
from adagp.accelerator.rtl.speedup import SMALL_CNN, Clocked
from adagp.accelerator.rtl.top import geometries
from adagp.accelerator.rtl.training import CNN, RtlTraining, initial_network
from adagp.schedules import Phase

RECORD = json.loads((Path(__file__).parents[3] / "docs" / "rtl-speedup.json").read_text())
TIMING = Timing(RECORD["bandwidth_words"], RECORD["latency_cycles"])
CLOCKED = [Clocked.of(each) for each in RECORD["batches"]]
SLOW = {"features.17", "features.21", "features.24", "features.28"}
LAYERS = dict.fromkeys((each.model, each.layer) for each in CLOCKED)


def cycles_now(batch):
    """By the formulas, and without stalls."""
    design, phase = Design(batch.design), Phase(batch.phase)
    cores = geometries(design)
    if batch.model == SMALL_CNN:
        small = initial_network(CNN, batch.batch, seed=0)
        expected = RtlTraining(small, batch.batch, design, cores, TIMING).model_cycles(phase)
        ops = layer_ops(CNN, batch.batch)
    else:
        ops = [op for op in network(batch.model, RECORD["data"], batch.batch) if op.name == batch.layer]
        expected = layer_program(ops[0], design, phase, cores, TIMING).model_cycles
    return expected, no_stall_cycles(ops, design, phase, cores, timing=TIMING)


@pytest.mark.parametrize(
    ("model", "layer"),
    [pytest.param(*each, marks=pytest.mark.slow if each[1] in SLOW else [], id=each[1]) for each in LAYERS],
)
def test_the_record_is_what_the_compiler_gives(model, layer):
    """If this fails, clock the layer again: `adagp hardware speedup --layers LAYER --file docs/rtl-speedup.json`."""
    recorded = [each for each in CLOCKED if (each.model, each.layer) == (model, layer)]
    assert [(each.cycles, each.no_stall_cycles) for each in recorded] == [cycles_now(each) for each in recorded]
