"""Training in integers on the RTL."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.accelerator import Design
from adagp.accelerator.rtl import golden_batch
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.measure import small_cores
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.training import RtlTraining, cross_entropy, initial_network, phases, train
from adagp.schedules import Phase

LAYERS = (Convolution(1, 2, (4, 4), (3, 3), (2, 2), (1, 1)), Convolution(8, 3))
SAMPLES = 2


def batches_of(count, seed=0):
    """Images whose brightest quarter is their label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count * SAMPLES)
    images = rng.integers(-64, 64, (count * SAMPLES, 1, 4, 4))
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * (label // 2) : 2 * (label // 2) + 2, 2 * (label % 2) : 2 * (label % 2) + 2] += 300
    return images, labels


def training_on(design):
    """A training, and the simulator for it."""
    cores, timing = small_cores(design), Timing(8, 2)
    training = RtlTraining(initial_network(LAYERS, SAMPLES, 0, grid=2), SAMPLES, design, cores, timing)
    return training, Bench(cores, timing)


def test_batches_on_the_rtl_stay_in_step_with_the_golden_model():
    training, bench = training_on(Design.LOW)
    found = list(train(training, bench, *batches_of(3), SAMPLES, [Phase.BP, Phase.GP, Phase.BP]))
    assert [batch.phase for batch in found] == [Phase.BP, Phase.GP, Phase.BP]
    assert all(batch.bit_exact and batch.cycles == batch.model_cycles for batch in found)
    assert found[1].cycles < found[0].cycles == found[2].cycles


def test_a_weight_that_differs_is_seen():
    training, bench = training_on(Design.BASELINE)
    training._dram[training._memory.layers[0].weights] ^= 1
    assert not next(train(training, bench, *batches_of(1), SAMPLES, [Phase.BP])).bit_exact


def test_the_loss_falls_in_integers():
    network, losses = initial_network(LAYERS, SAMPLES, 0, grid=2), []
    images, labels = batches_of(200)
    for step in range(200):
        part = slice(SAMPLES * step, SAMPLES * (step + 1))
        outputs = golden_batch.forward(network, images[part]).outputs
        loss, grads = cross_entropy(outputs[:, :, 0, 0], labels[part])
        losses.append(loss)
        golden_batch.bp_batch(network, images[part], grads[:, :, None, None], learns=True)
    assert np.mean(losses[-40:]) < 0.5 * np.mean(losses[:40])
    assert np.abs(network.last).max() > 0  # the predictor has learned something


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_loss_and_gradient_are_torchs(seed):
    rng = np.random.default_rng(seed)
    outputs, labels = rng.integers(-2000, 2000, (4, 5)), rng.integers(0, 5, 4)
    logits = torch.tensor(outputs / 256.0, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
    loss.backward()
    ours, grads = cross_entropy(outputs, labels)
    assert ours == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert np.abs(grads / 4096 / 4 - logits.grad.numpy()).max() <= 0.5 / 4096 / 4 + 1e-12


def test_the_baseline_never_predicts():
    assert set(phases(Design.BASELINE, 6, 0)) == {Phase.BP}
    assert phases(Design.MAX, 6, 2) == [Phase.BP, Phase.BP, Phase.GP, Phase.BP, Phase.GP, Phase.BP]


def test_images_that_do_not_fit_are_refused():
    from adagp.accelerator.rtl.training_data import fixed_images

    with pytest.raises(ValueError, match=r"data='digits': has no colour images of 32x32"):
        fixed_images("digits", Path(), 1)
