import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adagp import models
from adagp.accelerator import CNNS, DATA_SHAPES, network, networks, trace
from scripts.freeze_networks import FOLDER, frozen_text

QUICK = [("vgg13", "cifar10"), ("mobilenet_v2", "imagenet"), ("transformer", "multi30k"), ("resnet50", "cifar100")]


def pairs():
    return [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in networks.PAIRS]


@pytest.mark.parametrize(("model", "data"), pairs())
def test_frozen_networks_are_what_a_fresh_trace_gives(model, data):
    assert network(model, data, networks.TRACED_BATCH) == networks.fresh(model, data)
    form = DATA_SHAPES[data].form
    if data == networks.stored_data(form):
        assert (FOLDER / networks.file_name(model, form)).read_text() == frozen_text(model, form)


def test_every_network_is_stored_once_per_form():
    assert {path.name for path in FOLDER.iterdir()} == {networks.file_name(*stored) for stored in networks.FROZEN}
    assert len(CNNS) == 13
    assert len(networks.FROZEN) == 2 * 13 + 2


@pytest.mark.parametrize(("model", "data"), QUICK)
def test_any_batch_is_what_tracing_that_batch_gives(model, data):
    shape = DATA_SHAPES[data]
    with torch.device("meta"):
        built = models.build(model, shape.form, **shape.sizes)
        inputs = models.example_inputs(model, shape.form, batch=7, **shape.sizes)
    assert network(model, data, 7) == trace(built, *inputs)


def test_networks_that_are_not_frozen_are_traced():
    ops = network("resnet20", "cifar10", 5)
    assert len(ops) == 20
    assert ops[0].shape.batch == 5


def test_vector_work_is_counted_with_the_product_before_it():
    first = network("vgg13", "cifar10", 2)[0]
    assert first.vector_words == 2 * first.shape.output_words  # a norm and an activation
    pooled = network("vgg13", "cifar10", 2)[1]
    assert pooled.vector_words == 3 * pooled.shape.output_words
    added = dataclasses.replace(network("resnet20", "cifar10", 2)[2])
    assert added.vector_words == 3 * added.shape.output_words  # norm, sum, activation


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vgg13", "mnist", 1), "data='mnist'.*cifar10, cifar100, imagenet"),
        (("vgg12", "cifar10", 1), "model='vgg12'.*vgg13"),
        (("resnet20", "imagenet", 1), "model='resnet20' on data='imagenet'.*forms: cifar"),
        (("vgg13", "cifar10", 0), "batch=0"),
    ],
)
def test_bad_input_is_refused_by_name_with_a_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        network(*arguments)


def test_simulating_a_frozen_network_imports_no_torch():
    code = (
        "import sys; from adagp.accelerator import network, paper_schedule, simulate; "
        "simulate(network('vgg13', 'cifar10', 8), *paper_schedule(2)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")})
