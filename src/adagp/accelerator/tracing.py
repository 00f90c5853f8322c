"""Tracing: the products of any module as operations of the accelerator."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from adagp.accelerator.shapes import LayerShape, Pass
from adagp.accelerator.workload import LayerOp
from adagp.cost import Product, trace_forward
from adagp.layers import kind_of
from adagp.layers.coverage import parts_by_weight


def trace(model: nn.Module, *inputs: Tensor) -> list[LayerOp]:
    """The products of a model's forward, in the order in which they are made.

    The model and the inputs may be on any device and are left as they are. Only the shapes and types of the inputs
    matter. The model is traced in the mode it is in, `train` or `eval`.

    Args:
        model: Any module.
        *inputs: The arguments of its forward; the batch is the first dimension.

    Raises:
        ValueError: If the forward cannot be followed by shapes alone; the message names the module at which it stopped.
    """
    with torch.enable_grad():
        products = trace_forward(model, *inputs).products
    parts = parts_by_weight(model)
    return [_op(model, product, parts) for product in products]


def _op(model: nn.Module, product: Product, parts: Mapping[str, str]) -> LayerOp:
    needed = {
        Pass.FORWARD: True,
        Pass.INPUT_GRAD: product.input_requires_grad,
        Pass.WEIGHT_GRAD: product.weight_requires_grad,
    }
    name, covered = _owner(model, product, parts)
    return LayerOp(
        name,
        product.kind,
        _shape(product),
        tuple(which for which in Pass if needed[which]),
        covered,
        product.trains_bias,
        product.vector_words,
        product.pooling,
    )


def _shape(product: Product) -> LayerShape:
    if product.kind != "convolution":
        m, k = product.input_shape[-2:]
        return LayerShape(product.groups * k, product.groups * product.weight_shape[-1], groups=product.groups, batch=m)
    return LayerShape(
        product.input_shape[1],
        product.output_shape[1],
        product.output_shape[2:],
        product.weight_shape[2:],
        product.stride,
        product.groups,
        product.input_shape[0],
        product.input_shape[2:],
        product.dilation,
        product.transposed,
    )


def _owner(model: nn.Module, product: Product, parts: Mapping[str, str]) -> tuple[str, bool]:
    """The module or part that owns the weight, and whether it is a layer whose gradient `adagp` can supply."""
    caller = product.calls[-1].module if product.calls else ""
    if product.weight is None:
        return caller, False
    if product.weight in parts:
        return parts[product.weight], product.weight_requires_grad
    name, _, attribute = product.weight.rpartition(".")
    # A module can lend its weight without being called. Its hook never fires.
    covered = attribute == "weight" and kind_of(model.get_submodule(name)) is not None and caller == name
    return name, covered and product.weight_requires_grad
