"""What the waveforms of a layer say, against the formulas of its program."""

import pytest

from adagp.accelerator import Design, LayerOp, LayerShape, Pass
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.descriptor import Drain, Load, Product, Unit
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.layer_run import layer_program
from adagp.accelerator.rtl.measure import small_cores
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.waves import MOVES, WAITS, read_waves
from adagp.schedules import Phase

OP = LayerOp("layer", "convolution", LayerShape(2, 3, (4, 4), (3, 3), batch=1), tuple(Pass), covered=True)
WORK = {Unit.LOADER: ("loader", Load), Unit.ARRAY: ("array", Product), Unit.DRAINER: ("drainer", Drain)}


def test_units_are_busy_as_long_as_the_formulas_say_and_channels_move_every_beat(tmp_path):
    cores = small_cores(Design.MAX)
    program = layer_program(OP, Design.MAX, Phase.GP, cores, Timing(2, 3), grid=2)
    path = tmp_path / "layer.vcd"
    assert program.run(Bench, vcd=path)[0]
    descriptors = {
        unit: each.descriptors
        for unit, each in BatchPrograms(Design.MAX, cores, program.memory).batch(Phase.GP).items()
    }
    found = read_waves(path)
    assert found.keys() == cores.keys()
    for unit, waves in found.items():
        for which, (row, work) in WORK.items():
            number = sum(isinstance(each, work) for each in descriptors[unit])
            busy = program.expected[unit].busy[which]  # with the cycle of its acceptance, in which a unit is still idle
            assert waves.counts(row).total() == busy - number
        assert waves.counts("descriptors")[MOVES] == len(descriptors[unit])
        rows = sum(each.count for each in descriptors[unit] if isinstance(each, Drain))
        assert waves.counts("writes")[MOVES] == rows
        assert waves.counts("requests")[MOVES] == waves.counts("answers")[MOVES] > 0
        spans = [span for row in waves.rows.values() for span in row]
        assert all(0 <= span.start < span.end <= waves.cycles for span in spans)
    assert found["main"].counts("writes")[WAITS] > 0  # three words at two a cycle
    streamed = sum(
        each.count * each.k_folds * each.n_folds for each in descriptors["main"] if isinstance(each, Product)
    )
    assert found["main"].counts("array")["STREAM"] == streamed


def test_another_file_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "other.vcd"
    path.write_text("$scope module bench $end\n$var wire 1 ! clk $end\n$upscope $end\n$enddefinitions $end\n#0\n0!\n")
    with pytest.raises(ValueError, match="has no waveforms of an accelerator; write some by `adagp hardware run --vcd"):
        read_waves(path)
