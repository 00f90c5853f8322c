"""Words between the chip and DRAM: what the buffer's size forces, and what a policy chooses to move.

For one pass over an (M x K) by (K x N) product the buffer holds a block of one of the three tensors while the other two
stream past it. With M, N and K cut into p, q and r parts:

- holding a block of the result: the left operand is read q times, the right one p times, the result written once;
- holding a block of the right operand: the left one is read q times, the result written r times and read back r - 1;
- holding a block of the left operand: the right one is read p times, the result written r times and read back r - 1.

The cheapest way is taken. A larger buffer needs fewer parts, so it never moves more words. If one tensor fits whole,
every tensor moves once. Streamed tensors take no room in this model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt

from adagp.accelerator.shapes import ADJOINT_PASS, LayerShape, Pass
from adagp.accelerator.workload import LayerOp


@dataclass(frozen=True)
class Policy:
    """What moves in addition to the necessary.

    Attributes:
        about: One line for people.
        fused: Whether both gradients and the update share what they read, and the weight gradient stays on the chip.
        momentum: Whether the optimizer reads and writes one more value per weight.
        activations_on_chip: Whether activations stay on the chip in GP batches, as if it could hold a whole batch.
    """

    about: str
    fused: bool = False
    momentum: bool = False
    activations_on_chip: bool = False


POLICIES: Mapping[str, Policy] = {
    "once": Policy("each tensor once: both gradients and the update read together", fused=True),
    "separate": Policy("separate passes for the input gradient, the weight gradient and the update"),
    "momentum": Policy("separate passes, and the optimizer's momentum", momentum=True),
    "kept": Policy("separate passes, and in GP batches activations stay on the chip", activations_on_chip=True),
}


@dataclass(frozen=True)
class LayerTraffic:
    """DRAM words of one layer in one batch, part by part.

    Attributes:
        forward: The forward: inputs and weights in, outputs out.
        forward_on_chip: The forward of a GP batch, whose activations may stay on the chip.
        input_grad: The input gradient.
        weight_grad: The true weight gradient.
        shared: Words saved if both gradients are computed.
        update: The update after a true gradient.
        update_in_place: The update right after the forward, while the weights are still on the chip.
    """

    forward: int
    forward_on_chip: int
    input_grad: int
    weight_grad: int
    shared: int
    update: int
    update_in_place: int


def layer_traffic(op: LayerOp, policy: Policy, buffer_words: int, first: bool = False) -> LayerTraffic:
    """DRAM words of a layer, or of a product of two activations.

    Args:
        op: The layer.
        policy: What moves in addition to the necessary.
        buffer_words: Size of the global buffer.
        first: Whether it reads the network's inputs, which come from DRAM even if activations stay on the chip.
    """
    shape = op.shape
    weights = 0 if op.kind == "matmul" else shape.weight_words
    forward, input_grad, weight_grad = (pass_words(shape, which, buffer_words) for which in Pass)
    activations = shape.words - weights - (shape.input_words if first else 0)
    momentum = 2 * weights if policy.momentum else 0
    return LayerTraffic(
        forward=forward,
        forward_on_chip=forward - activations if policy.activations_on_chip else forward,
        input_grad=input_grad,
        weight_grad=weight_grad - weights if policy.fused else weight_grad,
        shared=shape.output_words + weights if policy.fused else 0,
        update=(2 if policy.fused else 3) * weights + momentum,
        update_in_place=weights + momentum,
    )


def pass_words(shape: LayerShape, which: Pass, buffer_words: int) -> int:
    """DRAM words of one pass, group by group, without padding."""
    if shape.transposed:
        return pass_words(shape.adjoint(), ADJOINT_PASS[which], buffer_words)
    inputs, weights, outputs = (
        words // shape.groups for words in (shape.input_words, shape.weight_words, shape.output_words)
    )
    match which:
        case Pass.FORWARD:
            tensors = (inputs, weights, outputs)
        case Pass.INPUT_GRAD:
            tensors = (outputs, weights, inputs)
        case Pass.WEIGHT_GRAD:
            tensors = (inputs, outputs, weights)
    return shape.groups * product_words(*tensors, buffer_words)


@cache
def product_words(left: int, right: int, result: int, buffer_words: int) -> int:
    """The fewest DRAM words of a product over all blockings, given the words of its three tensors."""
    holding_result = min(q * left + p * right + result for p, q in _parts(result, buffer_words))
    holding_right = min(q * left + right + (2 * r - 1) * result for q, r in _parts(right, buffer_words))
    holding_left = min(left + p * right + (2 * r - 1) * result for p, r in _parts(left, buffer_words))
    return min(holding_result, holding_right, holding_left)


def _parts(words: int, buffer_words: int) -> Iterator[tuple[int, int]]:
    """Numbers of parts along the two sides of a tensor so that a block fits the buffer.

    Only ways with as few parts as possible are given. One of the two numbers is then at most the square root of the
    blocks needed.
    """
    blocks = -(-words // buffer_words)
    for few in range(1, isqrt(max(blocks - 1, 0)) + 2):
        many = -(-blocks // few)
        yield few, many
        yield many, few
