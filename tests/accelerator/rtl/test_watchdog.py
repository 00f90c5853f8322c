"""A design that stands still ends, with an error that tells what waits."""

import numpy as np
import pytest

from adagp.accelerator import Design, Pass
from adagp.accelerator.rtl import testbench
from adagp.accelerator.rtl.descriptor import Barrier, Load, Memory, Product, Unit
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.measure import small_cores
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.verilated import VerilatedBench, has_verilator
from adagp.accelerator.rtl.watchdog import DeadlockError, patience_cycles
from tests.accelerator.rtl.passes import PassCase

CORE = CoreGeometry(2, 2, input_depth=256, weight_depth=64, output_depth=16, old_depth=32)
LOAD = Load(Memory.INPUTS, 0, 0, 2, 2)
TOKENLESS = [LOAD, Product(Memory.INPUTS, 1, waits=1 << Unit.LOADER), Barrier()]
"""The load does not signal the array, which waits for it."""


@pytest.fixture
def no_word_moves(monkeypatch):
    """DRAM takes no request and no write; descriptors are offered."""
    monkeypatch.setattr(testbench._Channels, "willing", lambda self: not self.describes)


def check_tokenless(bench):
    """It ends, and goes on from reset with a program that is as it should be."""
    with pytest.raises(DeadlockError) as caught:
        bench.run({"main": TOKENLESS}, np.zeros(8, np.int64))
    message = str(caught.value)
    assert "descriptor 1 in ARRAY waits for a token of LOADER, descriptor 2, BARRIER, waits until all units" in message
    assert "adagp hardware run --vcd" in message
    assert "main" in bench.run({"main": [LOAD, Barrier()]}, np.zeros(8, np.int64))
    return message


def test_a_token_that_is_never_given_ends_the_simulation():
    message = check_tokenless(Bench({"main": CORE}, Timing(2, 3)))
    assert "deadlock in the design of main 2x2 PEs: nothing has moved since cycle 5;" in message


@pytest.mark.slow
@pytest.mark.skipif(not has_verilator(), reason="needs verilator: apt-get install verilator")
def test_it_ends_the_compiled_simulation_too():
    message = check_tokenless(VerilatedBench(small_cores(Design.BASELINE), Timing(2, 3)))
    assert "deadlock in the design of main 4x3 PEs: nothing has moved since cycle 5;" in message


@pytest.mark.usefixtures("no_word_moves")
def test_a_channel_that_is_never_taken_from_is_named():
    case = PassCase(Convolution(2, 2, (2, 2)), Pass.FORWARD, 1, CORE)
    with pytest.raises(DeadlockError, match=r"main: the channel 'requests' waits to be taken from, descriptor \d+, "):
        Bench({"main": CORE}).run(case.programs, case.dram)


@pytest.mark.usefixtures("no_word_moves")
def test_a_full_queue_is_named():
    program = [LOAD] * 20
    with pytest.raises(DeadlockError, match=r"descriptor 9, LOAD, waits for room in the queue of LOADER"):
        Bench({"main": CORE}).run({"main": program}, np.zeros(8, np.int64))


def test_products_as_long_as_can_be_are_waited_for():
    """All that the queue holds, one after the other, while the dispatcher waits at a barrier."""
    program = [*[Product(Memory.INPUTS, 100, k_folds=3)] * 9, Barrier()]
    bench = Bench({"main": CORE})
    cycles = bench.run({"main": program}, np.zeros(8, np.int64))["main"].cycles
    assert 9 * 3 * 100 < cycles < patience_cycles({"main": program}, bench.cores, bench.timing)
