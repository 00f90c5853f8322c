"""Trains a small CNN in integers on the RTL, batch by batch, in step with the golden model.

Numbers are fixed point. Activations have 8 bits after the point; weights, gradients and the predictor have 12. The loss
and its gradient are computed by the host, between the forward and the backward.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl import golden_batch
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.cycles import program_cycles
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.integer_network import IntegerNetwork, Shifts
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.verilated import VerilatedBench
from adagp.schedules import Phase

CNN = (
    Convolution(3, 12, (32, 32), (3, 3), (2, 2), (1, 1)),
    Convolution(12, 24, (16, 16), (3, 3), (2, 2), (1, 1)),
    Convolution(24, 48, (8, 8), (3, 3), (2, 2), (1, 1)),
    Convolution(768, 10),
)
"""Three convolutions of stride 2 and a classifier, for images of 32 x 32."""
ACTIVATION_BITS, WEIGHT_BITS = 8, 12
"""Bits after the point."""
LEARNING_RATE_BITS = 4
"""The learning rate is 2 to the minus this."""


@dataclass(frozen=True)
class TrainedBatch:
    """One batch on the RTL.

    Attributes:
        phase: Its phase.
        loss: Cross-entropy before the update.
        bit_exact: Whether outputs, weights and predictor equal the golden model's in every bit.
        cycles: Cycles of the RTL.
        model_cycles: Cycles by the formulas.
    """

    phase: Phase
    loss: float
    bit_exact: bool
    cycles: int
    model_cycles: int


def initial_network(layers: tuple[Convolution, ...], samples: int, seed: int, grid: int = 4) -> IntegerNetwork:
    """A network with He's initial weights; the predictor's last layer is zero, so it predicts nothing at first."""
    rng = np.random.default_rng(seed)
    weights = [
        np.rint(
            rng.normal(size=(layer.c_out, layer.c_in // layer.groups, *layer.kernel))
            * np.sqrt(2 / layer.row)
            * 2**WEIGHT_BITS
        ).astype(np.int64)
        for layer in layers
    ]
    averaging = (samples - 1).bit_length()
    positions = (layers[0].out[0] // grid * layers[0].out[1] // grid - 1).bit_length()
    return IntegerNetwork(
        layers,
        weights,
        np.rint(rng.normal(size=(1, 1, 3, 3)) / 3 * 2**WEIGHT_BITS).astype(np.int64),
        np.zeros((grid * grid + 1, max(layer.row for layer in layers)), dtype=np.int64),
        grid,
        one=1 << ACTIVATION_BITS,
        shifts=Shifts(
            forward=WEIGHT_BITS,
            input_grad=WEIGHT_BITS,
            update=ACTIVATION_BITS + averaging + LEARNING_RATE_BITS,
            error=ACTIVATION_BITS + averaging,
            pool=WEIGHT_BITS + averaging + positions,
            hidden=WEIGHT_BITS,
            predicted=ACTIVATION_BITS,
            predicted_update=ACTIVATION_BITS + LEARNING_RATE_BITS,
            hidden_grad=WEIGHT_BITS,
            learn=ACTIVATION_BITS + LEARNING_RATE_BITS + 4,
        ),
    )


class RtlTraining:
    """A network in DRAM, and the programs of its batches on a design."""

    def __init__(
        self,
        network: IntegerNetwork,
        samples: int,
        design: Design,
        cores: Mapping[str, CoreGeometry],
        timing: Timing,
    ) -> None:
        """Start from the weights of `network`."""
        self._learns = design is not Design.BASELINE
        self._memory, self._golden = MemoryMap(network, samples), network.copy()
        layer = network.layers[0]
        self._dram = self._memory.filled(np.zeros((samples, layer.c_in, *layer.image), dtype=np.int64))
        builder = BatchPrograms(design, cores, self._memory)
        self._programs = {(Phase.BP, part): builder.batch(Phase.BP, (part,)) for part in ("forward", "backward")}
        if self._learns:
            self._programs[Phase.GP, "forward"] = builder.batch(Phase.GP, ("forward",))
        before = program_cycles(builder.batch(Phase.BP, ()), cores, timing)
        self._before = max(core.cycles for core in before.values())
        self._expected = {
            key: max(core.cycles for core in program_cycles(each, cores, timing).values()) - self._before
            for key, each in self._programs.items()
        }

    def model_cycles(self, phase: Phase) -> int:
        """Cycles of a batch by the formulas."""
        return sum(cycles for (which, _), cycles in self._expected.items() if which is phase)

    def batch(
        self, bench: Bench | VerilatedBench, images: Integers, labels: NDArray[np.int64], phase: Phase
    ) -> TrainedBatch:
        """Run a batch on the RTL, which `bench` clocks, and in the golden model."""
        memory, dram = self._memory, self._dram
        memory.put(dram, memory.images, images.transpose(0, 2, 3, 1))
        cycles, expected = self._run(bench, phase, "forward")
        outputs = memory.read_outputs(dram)
        loss, grads = cross_entropy(outputs[:, :, 0, 0], labels)
        if phase is not Phase.GP:
            memory.put(dram, memory.layers[-1].grads, grads)
            more, more_expected = self._run(bench, phase, "backward")
            cycles, expected = cycles + more, expected + more_expected
            done, _ = golden_batch.bp_batch(self._golden, images, grads[:, :, None, None], learns=self._learns)
        else:
            done = golden_batch.gp_batch(self._golden, images)
        found = memory.read_network(dram)
        exact = np.array_equal(outputs, done.outputs) and all(
            np.array_equal(ours, theirs)
            for ours, theirs in (
                *zip(found.weights, self._golden.weights, strict=True),
                (found.last, self._golden.last),
                (found.convolution, self._golden.convolution),
            )
        )
        return TrainedBatch(phase, loss, exact, cycles, expected)

    def _run(self, bench: Bench | VerilatedBench, phase: Phase, part: str) -> tuple[int, int]:
        key = (phase if phase is Phase.GP else Phase.BP), part
        programs = {unit: program.descriptors for unit, program in self._programs[key].items()}
        traces = bench.run(programs, self._dram)
        return max(trace.cycles for trace in traces.values()) - self._before, self._expected[key]


def cross_entropy(outputs: Integers, labels: NDArray[np.int64]) -> tuple[float, Integers]:
    """The mean loss of a batch, and each sample's gradient of it, times the samples, in fixed point."""
    logits = outputs * 0.5**ACTIVATION_BITS
    shifted = logits - logits.max(1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(shares[rows, labels]).mean())
    wrong = shares.copy()
    wrong[rows, labels] -= 1
    return loss, np.rint(wrong * 2**WEIGHT_BITS).astype(np.int64)


def phases(design: Design, batches: int, warmup: int) -> list[Phase]:
    """Plain BP first, then GP and BP in turns; on the baseline always BP."""
    if design is Design.BASELINE:
        return [Phase.BP] * batches
    return [Phase.GP if step >= warmup and (step - warmup) % 2 == 0 else Phase.BP for step in range(batches)]


def train(
    training: RtlTraining,
    bench: Bench | VerilatedBench,
    images: Integers,
    labels: NDArray[np.int64],
    samples: int,
    order: Sequence[Phase],
) -> Iterator[TrainedBatch]:
    """Train on one batch after the other, in the given phases."""
    for step, phase in enumerate(order):
        part = slice(step * samples, (step + 1) * samples)
        yield training.batch(bench, images[part], labels[part], phase)
