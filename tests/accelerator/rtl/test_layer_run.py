"""Layers of the zoo's networks on the RTL."""

from dataclasses import replace

import pytest

from adagp.accelerator import Design, LayerOp, LayerShape, Pass, network
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.layer_run import layer_program, run_layer
from adagp.accelerator.rtl.layer_shapes import convolution
from adagp.accelerator.rtl.measure import small_cores
from adagp.accelerator.rtl.no_stalls import no_stall_cycles
from adagp.accelerator.rtl.simulators import choose_simulator
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import geometries
from adagp.accelerator.rtl.verilated import VerilatedBench, has_verilator
from adagp.schedules import Phase

needs_verilator = pytest.mark.skipif(not has_verilator(), reason="needs verilator: apt-get install verilator")
SHAPE = LayerShape(2, 3, (4, 4), (3, 3), batch=1)
OP = LayerOp("features.9", "convolution", SHAPE, tuple(Pass), covered=True)
ZOO = ("vgg13", "resnet50", "mobilenet_v2", "inception_v3", "densenet121")


def kinds(model):
    """One layer of each kind of a network: those with other kernels, strides or groups are of another kind."""
    found = {}
    for op in network(model, "cifar10", batch=1):
        shape = op.shape
        deep = shape.c_in // shape.groups > 12
        found.setdefault(
            (op.kind, shape.kernel, shape.stride, shape.groups > 1, deep, Pass.INPUT_GRAD in op.passes), op
        )
    return list(found.values())


@pytest.mark.parametrize("model", ZOO)
def test_every_layer_is_a_convolution_with_equal_padding(model):
    for op in network(model, "cifar10", batch=2):
        layer = convolution(op.shape)
        assert layer.out == op.shape.out
        assert all(layer.shape(2).gemm(which) == op.shape.gemm(which) for which in Pass)


@pytest.mark.parametrize("phase", [Phase.GP, Phase.BP])
def test_a_layer_runs_and_is_compared(phase):
    cores = small_cores(Design.LOW)
    program = layer_program(OP, Design.LOW, phase, cores, Timing(4, 3), grid=2)
    found = run_layer(OP, program, Bench)
    assert found.bit_exact
    assert found.cycles == found.model_cycles > found.no_stall_cycles > 0
    assert found.moved_words > SHAPE.words
    use = found.use["main"]
    assert 0 < use.pes < use.array < 1
    assert all(0 < share < 1 for share in (use.loader, use.drainer))


def test_moved_words_are_those_of_the_batch_alone():
    """A predictor that stays on the chip, which a long layer needs large, is loaded before it."""
    long = replace(OP, shape=LayerShape(40, 2, (1, 1), (1, 1), batch=1))
    moved = {}
    for design in (Design.LOW, Design.EFFICIENT):
        cores = {"main": replace(small_cores(design)["main"], predictor_depth=256 * (design is Design.EFFICIENT))}
        program = layer_program(long, design, Phase.GP, cores, Timing(4, 3), grid=2)
        moved[design] = run_layer(long, program, Bench).moved_words
        predictor = program.network.last.size
    assert predictor == 5 * 40
    assert moved[Design.LOW] == moved[Design.EFFICIENT] + predictor


@pytest.mark.parametrize("phase", [Phase.GP, Phase.BP])
@pytest.mark.parametrize("design", [Design.EFFICIENT, Design.MAX])
def test_a_predictor_that_its_memory_does_not_hold_is_loaded_when_needed(design, phase):
    long = replace(OP, shape=LayerShape(40, 2, (1, 1), (1, 1), batch=1))
    cores = small_cores(design)
    assert all(core.predictor_depth < 5 * 40 / core.predictor_banks for core in cores.values())
    found = run_layer(long, layer_program(long, design, phase, cores, Timing(4, 3), grid=2), Bench)
    assert found.bit_exact
    assert found.cycles == found.model_cycles
    low = layer_program(long, Design.LOW, phase, small_cores(Design.LOW), Timing(4, 3), grid=2)
    assert found.moved_words == run_layer(long, low, Bench).moved_words


def test_pooled_sums_leave_while_the_array_uses_the_other_sums():
    """Several tiles of columns, so that the drainer writes pooled sums in the middle of a later tile."""
    op = replace(OP, shape=LayerShape(4, 12, (4, 4), (3, 3), batch=1))
    program = layer_program(op, Design.LOW, Phase.GP, small_cores(Design.LOW), Timing(16, 2), grid=2)
    assert run_layer(op, program, Bench).bit_exact


def test_one_wrong_bit_is_seen():
    program = layer_program(OP, Design.LOW, Phase.GP, small_cores(Design.LOW), Timing(), grid=2)
    other = replace(program, images=program.images + 1)

    class Wrong(Bench):
        def run(self, programs, dram, tell=None):
            found = super().run(programs, dram, tell)
            dram[program.memory.layers[0].outputs] ^= 1
            return found

    assert not run_layer(OP, program, Wrong).bit_exact
    assert other.run(Bench)[0]


@pytest.mark.slow
@needs_verilator
@pytest.mark.parametrize("model", ["vgg13", "resnet50", "mobilenet_v2"])
def test_every_kind_of_layer_runs_on_180_pes(model):
    """Both phases, on the first layer of each kind."""
    for op in kinds(model):
        for phase in (Phase.GP, Phase.BP):
            program = layer_program(op, Design.EFFICIENT, phase, geometries(Design.EFFICIENT), Timing())
            found = run_layer(op, program, VerilatedBench)
            assert found.bit_exact, (op.name, phase)
            assert found.cycles == found.model_cycles, (op.name, phase)


@pytest.mark.slow
@needs_verilator
@pytest.mark.parametrize("design", Design)
def test_every_design_runs_a_layer_of_the_paper(design):
    op = next(op for op in network("vgg13", "cifar10", batch=1) if op.name == "features.14")
    for phase in (Phase.BP, Phase.GP):
        if (design, phase) != (Design.BASELINE, Phase.GP):
            found = run_layer(op, layer_program(op, design, phase, geometries(design), Timing()), VerilatedBench)
            assert found.bit_exact
            assert found.cycles == found.model_cycles


def test_gp_saves_what_the_paper_says_also_with_moves():
    """BP and GP of a layer at the paper's size, by the formulas that the RTL is checked against."""
    op = next(op for op in network("vgg13", "cifar10", batch=4) if op.name == "features.3")

    def cycles(design, phase):
        return layer_program(op, design, phase, geometries(design), Timing()).model_cycles

    plain = cycles(Design.BASELINE, Phase.BP)
    for design in (Design.LOW, Design.EFFICIENT, Design.MAX):
        assert 1.45 < 2 * plain / (cycles(design, Phase.BP) + cycles(design, Phase.GP)) < 1.5
    assert 1 < plain / no_stall_cycles([op], Design.BASELINE, Phase.BP, geometries(Design.BASELINE)) < 1.2


def test_more_bandwidth_never_costs_cycles_and_less_latency_neither():
    def cycles(bandwidth, latency):
        return layer_program(
            OP, Design.EFFICIENT, Phase.BP, small_cores(Design.EFFICIENT), Timing(bandwidth, latency), grid=2
        ).model_cycles

    assert cycles(1, 20) > cycles(2, 20) > cycles(4, 20) >= cycles(16, 20) > cycles(16, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": replace(SHAPE, transposed=True)}, "layer features.9: is a transposed convolution"),
        ({"shape": LayerShape(2, 3, (4,), (3,))}, "layer features.9: has 1 spatial axes"),
        ({"kind": "matmul"}, "layer features.9: is a product of two activations"),
        ({"shape": replace(SHAPE, image=(5, 4))}, "layer features.9: has an output of"),
    ],
)
def test_what_the_rtl_cannot_run_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        layer_program(replace(OP, **changes), Design.LOW, Phase.GP, small_cores(Design.LOW), Timing())


def test_without_verilator_the_time_is_told(monkeypatch):
    monkeypatch.setattr("adagp.accelerator.rtl.simulators.has_verilator", lambda: False)
    told = []
    cores = geometries(Design.BASELINE)
    assert choose_simulator(1_000_000, cores, told.append) is Bench
    assert "verilator is missing" in told[0]
    assert "apt-get install verilator" in told[0]
    assert choose_simulator(100, cores, told.append) is Bench
    assert len(told) == 1


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 1), "bandwidth=0: must be at least 1"), ((1, 0), "latency=0: must be between 1 and")]
)
def test_a_memory_that_never_answers_is_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Timing(*sizes)
