"""The cable between namespaces: each packet's time by hand, and what TCP finds on a real one."""

import struct
from collections.abc import Iterator

import pytest

from benchmarks import namespaces
from benchmarks.cable import QUEUE_SECONDS, Lane, longest_packet, wire_bytes


def packet(length: int, headers: int = 0, payload: int = 0) -> bytes:
    """`length` bytes behind virtio's header, to be cut into packets of `payload` bytes each where it is given."""
    return struct.pack("<BBHHHH", 0, 1 if payload else 0, headers, payload, 0, 0) + bytes(length)


def test_a_packet_takes_its_bytes_over_the_rate_and_then_the_delay() -> None:
    lane = Lane(bytes_per_second=1e6, delay_seconds=0.01)
    one, two = packet(1000), packet(2000)
    lane.take(one, now=5.0)
    lane.take(two, now=5.0005)  # the first one leaves until 5.001
    assert lane.next_arrival() == pytest.approx(5.011)
    assert list(lane.arrived(5.0109)) == []
    assert list(lane.arrived(5.0111)) == [one]
    assert lane.next_arrival() == pytest.approx(5.013)
    assert list(lane.arrived(6.0)) == [two]
    assert lane.next_arrival() == float("inf")
    assert lane.lost == 0


def test_what_would_wait_too_long_is_lost() -> None:
    lane = Lane(bytes_per_second=1e6, delay_seconds=0.0)
    for _ in range(3):
        lane.take(packet(int(1e6 * QUEUE_SECONDS)), now=0.0)
    assert lane.lost == 1
    lane.take(packet(1), now=1.01 * QUEUE_SECONDS)  # the first has left
    assert lane.lost == 1
    assert len(list(lane.arrived(10.0))) == 3


def test_a_packet_that_is_cut_has_headers_for_each_part() -> None:
    assert wire_bytes(packet(1500)) == 1500
    assert wire_bytes(packet(40 + 1460, headers=40, payload=1460)) == 1500
    assert wire_bytes(packet(40 + 1461, headers=40, payload=1460)) == 1501 + 40
    assert wire_bytes(packet(40 + 3 * 1460, headers=40, payload=1460)) == 3 * 1500
    assert longest_packet(100) == 12_500
    assert longest_packet(10_000) == 65_536


@pytest.fixture(params=["netem", "cable"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each kind of link, where this machine can make it."""
    reason = namespaces.why_not()
    if not reason and request.param == "netem" and not namespaces.has_netem():
        reason = "the kernel has no netem"
    if not reason and request.param == "cable" and not namespaces.TUN.exists():
        reason = f"the kernel has no {namespaces.TUN}"
    if reason:
        pytest.skip(f"no link between namespaces: {reason}")
    monkeypatch.setattr(namespaces, "has_netem", lambda: request.param == "netem")
    yield request.param
    assert namespaces.spaces_of_this_process() == []


@pytest.mark.parametrize(("megabits", "delay_ms"), [(100, 0), (100, 10), (300, 5)])
def test_tcp_finds_the_round_trip_and_the_rate_that_were_asked_for(kind: str, megabits: int, delay_ms: int) -> None:
    with namespaces.link(megabits, delay_ms) as link:
        assert link.kind == kind
        found = link.measured()
    # The least of 20 round trips, and what a late process adds. Headers take 4 % of the rate, a busy machine more.
    assert 2e-3 * delay_ms <= found.round_trip_seconds < 2e-3 * delay_ms + 2e-3
    assert 0.85 < found.bits_per_second / (1e6 * megabits) < 1
    assert kind == "netem" or 0 < link.report["core"] < 1


def test_a_link_is_removed_where_its_user_fails(kind: str) -> None:
    def use() -> None:
        with namespaces.link(100, 0):
            assert len(namespaces.spaces_of_this_process()) == 2
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        use()
