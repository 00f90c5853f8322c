from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.accelerator.pipeline.measured import measured
from adagp.advice import Advice, LayerFinding

seconds = st.floats(1e-4, 1e-1)


def advice(layers: list[tuple[float, float, float]], forward: float = 0.1, backward: float = 0.2) -> Advice:
    found = tuple(LayerFinding(f"layer{place}", "Linear", *times) for place, times in enumerate(layers))
    phases = {"forward": forward, "backward": backward, "optimizer": 0.01}
    return Advice(0.3, phases, 0, (), None, (), found, None, {}, 60.0)


@pytest.mark.parametrize("scheme", ["gpipe", "dapple"])
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (2, 4), (4, 4), (4, 8)])
def test_equal_stages_leave_the_bubbles_of_the_textbook(scheme: str, devices: int, microbatches: int) -> None:
    found = measured(advice([(1.0, 1.0, 1.0)] * 2 * devices), devices, microbatches, scheme)
    assert found.bubbles == pytest.approx((devices - 1) / (microbatches + devices - 1))
    assert found.imbalance == pytest.approx(1.0)
    assert found.speed_up == pytest.approx(devices * (1 - found.bubbles))
    assert found.starts == tuple(f"layer{2 * stage}" for stage in range(devices))


def test_four_gp_batches_hide_the_bubbles_of_all_but_one() -> None:
    """4 GP batches and a BP batch take 37 steps, five BP batches 5 * 21."""
    found = measured(advice([(1.0, 1.0, 1.0)] * 4), 4, 4, "gpipe")
    assert found.gp_speed_up == pytest.approx(105 / 37)


@given(st.lists(st.tuples(seconds, seconds, seconds), min_size=3, max_size=9), st.integers(1, 3), st.integers(1, 6))
def test_what_devices_do_and_what_they_wait_is_all_of_their_time(
    layers: list[tuple[float, float, float]], devices: int, microbatches: int
) -> None:
    found = measured(advice(layers), devices, microbatches)
    assert 0 <= found.bubbles + 1e-9 < 1
    assert found.speed_up == pytest.approx(devices * (1 - found.bubbles))
    assert found.speed_up <= devices / found.imbalance * (1 + 1e-9), "the longest stage bounds it"
    assert len(found.starts) == devices
    assert all(one < other for one, other in pairwise(found.starts))


def test_the_measured_parts_decide_and_not_the_layers_alone() -> None:
    """Norms and activations belong to no layer: their time is in the parts of the batch."""
    layers = [(1.0, 1.0, 1.0), (1.0, 5.0, 5.0)]
    half, twice = measured(advice(layers, 0.1, 0.2), 2, 2), measured(advice(layers, 0.1, 0.4), 2, 2)
    assert half.imbalance < twice.imbalance


@pytest.mark.parametrize(
    ("layers", "devices", "scheme", "message"),
    [
        ([], 2, "gpipe", "no layer was measured; give more seconds"),
        ([(1.0, 1.0, 1.0)], 2, "gpipe", "only 1 layers"),
        ([(1.0, 1.0, 1.0)] * 3, 3, "chimera", "even number"),
    ],
)
def test_what_cannot_be_a_pipeline(
    layers: list[tuple[float, float, float]], devices: int, scheme: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        measured(advice(layers), devices, 4, scheme)
