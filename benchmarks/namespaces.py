"""Two network namespaces on this machine, with one link of a given rate and delay in between.

Nothing leaves the namespaces. They are removed at the end, and the link with them. It needs root and iproute2. Where
the kernel has netem the link is a virtual Ethernet cable that netem limits, else `benchmarks.cable` over TUN devices.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import cable
from benchmarks.cable import NAME, longest_packet

ADDRESSES = ("10.253.77.1", "10.253.77.2")
"""Private ones, which exist inside the namespaces only."""
TUN = Path("/dev/net/tun")
_PORT = 29576


@dataclass(frozen=True)
class Measured:
    """What a TCP connection gives.

    Attributes:
        round_trip_seconds: The least of several messages there and back.
        bits_per_second: Of a stream that has been under way for a while.
    """

    round_trip_seconds: float
    bits_per_second: float


@dataclass(frozen=True)
class Link:
    """A link that is up.

    Attributes:
        spaces: The names of its two namespaces.
        kind: What limits it, `netem` or `cable`.
        device: The name of the link's device in both.
        report: What a cable said when it was taken down: packets lost, and the share of a core that it took.
    """

    spaces: tuple[str, str]
    kind: str
    device: str = NAME
    report: dict[str, float] = field(default_factory=dict)

    def start(
        self, end: int, command: Sequence[str], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command in one of the namespaces."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.spaces[end], *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measured(self, seconds: float = 1.5) -> Measured:
        """What a TCP connection over it gives."""
        command = [sys.executable, "-m", "benchmarks.probe", ADDRESSES[0], str(_PORT)]
        serving = self.start(0, [*command, "serve"])
        asking = self.start(1, [*command, "ask", str(seconds)])
        try:
            told, _ = asking.communicate(timeout=20 + 2 * seconds)
            return Measured(**json.loads(told))
        finally:
            for process in (serving, asking):
                process.kill()
                process.communicate()


def why_not() -> str:
    """What is missing to make a link, or an empty string."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "it needs root, to make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"it needs iproute2 ({', '.join(missing)} not found)"
    try:
        with _spaces("probe"):
            pass
    except subprocess.CalledProcessError as error:
        return f"the kernel gives no network namespaces here ({error.stderr.strip()})"
    if not has_netem() and not TUN.exists():
        return f"the kernel has neither netem nor {TUN}"
    return ""


def has_netem() -> bool:
    """Whether the kernel can delay packets by itself."""
    with _spaces("probe") as (space,):
        _do("ip", "-n", space, "link", "set", "lo", "up")
        command = ("tc", "-n", space, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def link(megabits: float, delay_ms: float) -> Iterator[Link]:
    """A link on which a message takes the delay one way, made by netem where the kernel has it."""
    with _spaces("0", "1") as (one, two):
        found = Link((one, two), "netem" if has_netem() else "cable")
        with (_netem if found.kind == "netem" else _cable)(found, megabits, delay_ms):
            yield found


def spaces_of_this_process() -> list[str]:
    """The namespaces that are there now."""
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, check=True, text=True).stdout
    return [line.split()[0] for line in told.splitlines() if line.startswith(_prefix())]


def _prefix() -> str:
    return f"adagp-{os.getpid()}-"


@contextmanager
def _spaces(*names: str) -> Iterator[tuple[str, ...]]:
    """New namespaces."""
    spaces = tuple(_prefix() + name for name in names)
    try:
        for space in spaces:
            _do("ip", "netns", "add", space)
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


@contextmanager
def _netem(up: Link, megabits: float, delay_ms: float) -> Iterator[None]:
    """A virtual Ethernet cable, limited at both ends."""
    one, two = up.spaces
    _do("ip", "-n", one, "link", "add", NAME, "type", "veth", "peer", "name", NAME, "netns", two)
    for space in up.spaces:
        limit = ("delay", f"{delay_ms}ms", "rate", f"{megabits}mbit", "limit", "100000")
        _do("tc", "-n", space, "qdisc", "add", "dev", NAME, "root", "netem", *limit)
    _set_up(up)
    yield


@contextmanager
def _cable(up: Link, megabits: float, delay_ms: float) -> Iterator[None]:
    """A process that carries packets between TUN devices."""
    command = [sys.executable, "-m", cable.__name__, *up.spaces, str(megabits), str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as carrying:
        try:
            assert carrying.stdout is not None
            if carrying.stdout.readline() != "ready\n":
                raise RuntimeError("benchmarks.cable could not make its devices: its error is above")
            longest = str(longest_packet(megabits))
            for space in up.spaces:
                _do("ip", "-n", space, "link", "set", NAME, "txqueuelen", "2000", "gso_max_size", longest)
            _set_up(up)
            yield
            told, _ = carrying.communicate(timeout=10)  # it ends when its input closes
            up.report.update(json.loads(told))
        finally:
            carrying.kill()


def _set_up(up: Link) -> None:
    """Give both ends an address, and TCP the one rule that every kernel allows in every namespace."""
    for space, address in zip(up.spaces, ADDRESSES, strict=True):
        _do("ip", "netns", "exec", space, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        _do("ip", "-n", space, "link", "set", "lo", "up")
        _do("ip", "-n", space, "address", "add", f"{address}/30", "dev", NAME)
        _do("ip", "-n", space, "link", "set", NAME, "up")


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
