import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.accelerator.rtl import golden
from adagp.accelerator.rtl.checks import run_checks
from adagp.accelerator.rtl.fixed import Fixed, product_error

PASSES = [
    f"{layer}, {which}" for layer in ("convolution", "linear") for which in ("forward", "input grad", "weight grad")
]


def test_every_pass_and_a_gp_step_are_exact_near_torch_and_on_time():
    found = list(run_checks(rows=4, columns=3, seed=1))
    assert [check.name for check in found] == [*PASSES, "GP step"]
    for check in found:
        assert check.passed, check
        assert 0 < check.error <= check.bound < 0.01


def test_a_wrong_result_fails_its_check(monkeypatch):
    true = golden.operands
    monkeypatch.setattr(
        golden, "operands", lambda sums, shift, width=16: true(sums, shift, width) + (sums == sums.max())
    )
    assert not next(run_checks(rows=2, columns=2)).passed


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 16), st.floats(1e-6, 1e6))
def test_whole_numbers_stand_for_real_ones_within_their_error(seed, width, scale):
    rng = np.random.default_rng(seed)
    left, right = scale * rng.normal(size=(3, 4)), rng.normal(size=(4, 2))
    fixed, other = Fixed.of(left, width), Fixed.of(right, width)
    assert np.abs(fixed.whole).max() < 1 << (width - 1)
    assert (np.abs(fixed.real - left) <= fixed.error).all()
    slack = 1e-12 * scale
    assert (np.abs(fixed.real @ other.real - left @ right) <= product_error(np.matmul, fixed, other) + slack).all()
