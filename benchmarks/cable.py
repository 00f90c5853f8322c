"""A cable of a given rate and delay between two network namespaces: `python -m benchmarks.cable ONE TWO MBIT DELAY_MS`.

The kernel's own netem delays packets better, where it is built in. Here each namespace gets a TUN device, and this
process carries packets from one to the other. A packet leaves when those before it have left, takes its bytes over the
rate to do so, and arrives a delay later. One that would have to wait for longer than `QUEUE_SECONDS` is lost.

A packet here may be many of the wire's: the device says that it can cut a long one into those of 1,500 bytes. So TCP
works as over Ethernet, and there are few packets to carry. Each arrives as a whole.

It says "ready" when both devices are there. When its input closes it ends, which removes them, and says how many
packets were lost and which share of a core it took.
"""

import ctypes
import fcntl
import json
import os
import select
import struct
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time

NAME = "cable"
"""Of the device in both namespaces."""
QUEUE_SECONDS = 0.2
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_HEADER = struct.Struct("<BBHHHH")  # of virtio: flags, kind, length of the headers, payload of each packet, checksum


class Lane:
    """One direction of the cable."""

    def __init__(self, bytes_per_second: float, delay_seconds: float) -> None:
        """Nothing is under way."""
        self._bytes_per_second, self._delay = bytes_per_second, delay_seconds
        self._left = 0.0  # when the last packet has left
        self._flying: deque[tuple[float, bytes]] = deque()
        self.lost = 0
        """Packets for which the queue had no room."""

    def take(self, packet: bytes, now: float) -> None:
        """Send a packet, or several in one."""
        if self._left - now > QUEUE_SECONDS:
            self.lost += 1
            return
        self._left = max(now, self._left) + wire_bytes(packet) / self._bytes_per_second
        self._flying.append((self._left + self._delay, packet))

    def arrived(self, now: float) -> Iterator[bytes]:
        """The packets that have arrived, each once."""
        while self._flying and self._flying[0][0] <= now:
            yield self._flying.popleft()[1]

    def next_arrival(self) -> float:
        """When a packet arrives; infinity where none is under way."""
        return self._flying[0][0] if self._flying else float("inf")


def longest_packet(megabits: float) -> int:
    """The bytes of a packet to carry: a millisecond's, and at most what the kernel allows."""
    return min(2**16, max(3000, int(megabits * 1e6 / 8 / 1000)))


def wire_bytes(packet: bytes) -> int:
    """The length of all packets that the wire would see, each with headers of its own."""
    _, kind, headers, payload, _, _ = _HEADER.unpack_from(packet)
    length = len(packet) - _HEADER.size
    cuts = (length - headers - 1) // payload if kind else 0
    return length + cuts * headers


def carry(ends: tuple[int, int], lanes: tuple[Lane, Lane], stop: int) -> None:
    """Carry packets both ways until `stop` can be read. Lane 0 begins at end 0."""
    while True:
        arrival = min(lane.next_arrival() for lane in lanes)
        timeout = None if arrival == float("inf") else max(0.0, arrival - monotonic())
        readable, _, _ = select.select([*ends, stop], [], [], timeout)
        if stop in readable:
            return
        now = monotonic()
        for end, lane in zip(ends, lanes, strict=True):
            if end in readable:
                _read(end, lane, now)
        for end, lane in zip(reversed(ends), lanes, strict=True):
            for packet in lane.arrived(now):
                _write(end, packet)


def _read(end: int, lane: Lane, now: float) -> None:
    """Take all that waits: the device drops what its ring cannot hold."""
    while True:
        try:
            lane.take(os.read(end, 2**16 + _HEADER.size), now)
        except BlockingIOError:
            return


def _write(end: int, packet: bytes) -> None:
    with suppress(OSError):  # the device is not up yet, or no longer; what the kernel sends by itself may get lost
        os.write(end, packet)


def end_in(space: str) -> int:
    """A TUN device in a namespace, as a file of packets; it exists as long as the file is open."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", space).open() as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {space}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", NAME.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(end, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return end


def main() -> None:
    """Carry packets until the input closes."""
    one, two, megabits, delay_ms = sys.argv[1:]
    ends = end_in(one), end_in(two)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # or a busy processor would add to the delay
    rate, delay = float(megabits) * 1e6 / 8, float(delay_ms) / 1e3
    lanes = Lane(rate, delay), Lane(rate, delay)
    print("ready", flush=True)
    start, used = monotonic(), process_time()
    carry(ends, lanes, sys.stdin.fileno())
    share = (process_time() - used) / (monotonic() - start)
    print(json.dumps({"lost": sum(lane.lost for lane in lanes), "core": share}), flush=True)


if __name__ == "__main__":
    main()
