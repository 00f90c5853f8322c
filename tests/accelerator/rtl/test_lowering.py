import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adagp.accelerator import Gemm, Pass
from adagp.accelerator.rtl import golden_batch
from adagp.accelerator.rtl.lowering import Convolution


@st.composite
def layers(draw):
    small = st.integers(1, 3)
    sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))
    try:
        return Convolution(
            draw(small), draw(small), draw(sizes), draw(st.tuples(small, small)), draw(small), draw(st.integers(0, 3))
        )
    except ValueError:
        assume(False)


@settings(deadline=None)
@given(layers(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_every_pass_lowers_to_the_product_that_the_model_counts(layer, batch, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(-9, 9, (batch, layer.c_in, *layer.image))
    weight = rng.integers(-9, 9, (layer.c_out, layer.c_in, *layer.kernel))
    grads = rng.integers(-9, 9, (batch, layer.c_out, *layer.out))
    operands = {
        Pass.FORWARD: (layer.patches(images), layer.filters(weight)),
        Pass.WEIGHT_GRAD: (layer.patches(images).T, layer.pixels(grads)),
        Pass.INPUT_GRAD: (layer.spread(grads), layer.turned(weight)),
    }
    forward, weight_grad, input_grad = (left @ right for left, right in operands.values())
    np.testing.assert_array_equal(layer.images(forward), golden_batch.forward_sums(layer, images, weight))
    np.testing.assert_array_equal(
        weight_grad.T.reshape(weight.shape), golden_batch.weight_grad_sums(layer, images, grads)
    )
    np.testing.assert_array_equal(
        input_grad.reshape(batch, *layer.image, layer.c_in).transpose(0, 3, 1, 2),
        golden_batch.input_grad_sums(layer, grads, weight),
    )
    for which, (left, right) in operands.items():
        assert Gemm(left.shape[0], right.shape[1], left.shape[1]) == layer.shape(batch).gemm(which)


def test_a_kernel_larger_than_its_image_is_refused():
    with pytest.raises(ValueError, match="kernel=3x3: is larger than image=2x4"):
        Convolution(1, 1, (2, 4), (3, 3))
