import pytest
import torch
from torch import nn

from adagp import models
from adagp.accelerator import Pass, PredictorShape, trace
from adagp.cost import CostModel
from adagp.layers import Layer, kind_of
from adagp.predictors import PaperPredictor
from adagp.schedules import Phase, Plan


def predictor_for(module, **sizes):
    predictor = PaperPredictor(**sizes)
    kind = kind_of(module)
    out, fan_in = kind.rows(module, module.weight).shape
    predictor.attach([Layer("layer", module, kind, module.weight, module.bias, out, fan_in)])
    return predictor


@pytest.mark.parametrize(("grid", "channels"), [(4, 1), (3, 2)])
@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Conv2d(6, 9, (3, 1), groups=3), torch.zeros(2, 6, 8, 8)),
        (nn.Linear(5, 7), torch.zeros(2, 5)),
        (nn.ConvTranspose2d(6, 4, 2, groups=2), torch.zeros(2, 6, 8, 8)),
    ],
)
def test_predictor_shapes_are_those_of_the_real_predictor(module, inputs, grid, channels):
    (op,) = trace(nn.Sequential(module), inputs)
    convolution, last = PredictorShape(grid, channels).layers(op)
    real = predictor_for(module, grid=grid, channels=channels)
    assert convolution.weight_words == len(real._conv.values) - channels  # all but the biases
    assert last.weight_words == real._last.numel()
    assert convolution.batch == last.batch == op.shape.c_out
    assert convolution.output_words == last.batch * (last.c_in - 1)


def test_predictor_work_is_what_the_cost_of_a_plan_counts():
    with torch.device("meta"):
        model, (images,) = models.build("resnet20"), models.example_inputs("resnet20", batch=2)
    counted = CostModel(model, images.shape).layers(Plan(Phase.GP, "predicted"))
    for op in trace(model, images):
        _, last = PredictorShape().layers(op)
        assert last.gemm(Pass.FORWARD).macs == counted[op.name].weight_gradient
