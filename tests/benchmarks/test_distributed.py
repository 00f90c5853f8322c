"""The model of data-parallel batches, by cases worked out by hand."""

import pytest

from benchmarks.distributed import KINDS, LARGE_BYTES, Model, checked, computed, tables
from benchmarks.scaling import Traffic, Transport, batch_seconds, message_seconds, speed_up, work_seconds


def test_transport_is_what_two_all_reduces_tell() -> None:
    # Four ranks: 6 steps of 0.1 ms; of 8 MB each rank sends 12 MB, in 12 ms beyond those steps.
    transport = Transport.measured(4, small_seconds=0.6e-3, large_seconds=12.6e-3, large_bytes=8_000_000)
    assert transport.step_seconds == pytest.approx(0.1e-3)
    assert transport.bytes_per_second == pytest.approx(1e9)
    with pytest.raises(ValueError, match="4 ranks: 8 bytes took no longer than one number"):
        Transport.measured(4, small_seconds=2e-3, large_seconds=1e-3, large_bytes=8)


def test_a_wire_is_added_to_what_the_software_needs() -> None:
    behind = Transport(1e-4, 1e9).behind(1e9)
    assert (behind.step_seconds, behind.bytes_per_second) == (1e-4, pytest.approx(5e8))


def test_work_lies_on_lines_between_what_was_measured() -> None:
    measured = {32: 0.5, 2: 0.2, 8: 0.26}
    assert work_seconds(measured, 2) == 0.2
    assert work_seconds(measured, 5) == pytest.approx(0.23)
    assert work_seconds(measured, 20) == pytest.approx(0.38)
    with pytest.raises(ValueError, match="1 images a rank: measured were 2 to 32"):
        work_seconds(measured, 1)


def test_messages_cost_steps_and_bytes() -> None:
    # Eight ranks: 3 rings of 14 steps and 2 broadcasts of 3 make 48; each of 4 MB goes 1.75 times.
    seconds = message_seconds(8, Traffic(3, 2, 4e6), Transport(1e-4, 1e9))
    assert seconds == pytest.approx(4.8e-3 + 7e-3)
    assert message_seconds(1, Traffic(3, 2, 4e6), Transport(1e-4, 1e9)) == 0


def test_ranks_without_a_core_take_turns() -> None:
    quiet = Traffic(0, 0, 0)
    for ranks, cores, expected in ((2, 2, 0.26), (4, 2, 0.52), (4, 4, 0.26), (3, 2, 0.39)):
        found = batch_seconds({8: 0.26, 32: 0.5}, 8, ranks, cores, quiet, Transport(1e-4, 1e9))
        assert found == pytest.approx(expected)


def test_the_speed_up_is_of_a_pair_of_batches() -> None:
    assert speed_up(plain=3, bp=3, gp=1) == 1.5


def test_the_report_holds_the_model_against_every_measured_point() -> None:
    # 2 ranks: a step of 1 ms and 1 MiB in 10 ms. 4 ranks on 2 cores: a step of 1 ms, 1.5 MiB carried in 30 ms.
    traffic = {"reductions": 1.0, "broadcasts": 0.0, "sent_bytes": float(LARGE_BYTES)}
    found = {
        "machine": "a machine",
        "pipeline": {"seconds": {"BP": 3.0, "GP": 1.0}},
        "work": {images: dict.fromkeys(KINDS, images / 100) for images in (128, 32, 8, 2)},
        "transport": {2: {"small": 0.002, "large": 0.012}, 4: {"small": 0.006, "large": 0.036}},
        "data_parallel": {
            ranks: {"seconds": dict.fromkeys(KINDS, 0.652), "traffic": dict.fromkeys(KINDS, traffic)}
            for ranks in (2, 4)
        },
    }
    model = Model(found)
    rows = checked(found, model, batch=128, cores=2)
    assert [(row["ranks"], row["kind"]) for row in rows] == [(ranks, kind) for ranks in (2, 4) for kind in KINDS]
    assert [row["modelled_seconds"] for row in rows] == pytest.approx([0.652] * 3 + [0.676] * 3)
    assert [row["error"] for row in rows] == pytest.approx([0] * 3 + [0.024 / 0.652] * 3)
    shared = computed(model, lambda ranks: 128 / ranks)
    assert len(shared) == 6 * 3
    assert all(row["speed_up"] == pytest.approx(1) for row in shared)
    assert shared[0]["plain"] == pytest.approx(0.652 + LARGE_BYTES / 125e6)  # behind one Gbit/s
    report = tables({**found, "checked": rows, "shared_batch": shared, "growing_batch": shared}, model, 128)
    assert "| GP | 1.000 | 3.00 |" in report
    assert "| 4 | BP | 652.0 | 676.0 | +4% |" in report
