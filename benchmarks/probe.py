"""What a link gives to a TCP connection: `python -m benchmarks.probe ADDRESS PORT serve`, then `ask SECONDS`.

Both need root, to run before other work: the link is measured, and not how busy the machine is.
"""

import json
import os
import socket
import sys
from time import monotonic, perf_counter, sleep

ECHOES = 20
_BLOCK = bytes(2**16)


def serve(address: str, port: int) -> None:
    """Return what one connection sends, message by message; then count what it streams, and tell."""
    with socket.create_server((address, port)) as server:
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ECHOES):
            connection.sendall(connection.recv(1))
        connection.sendall(f"{_rate(connection):f}".encode())


def _rate(connection: socket.socket) -> float:
    """Bytes per second in the second half of a stream."""
    arrivals: list[tuple[float, int]] = []
    total = 0
    while received := len(connection.recv(2**20)):
        total += received
        arrivals.append((perf_counter(), total))
    start, end = arrivals[0][0], arrivals[-1][0]
    later = [arrival for arrival in arrivals if arrival[0] > (start + end) / 2]
    return (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0])


def ask(address: str, port: int, seconds: float) -> dict[str, float]:
    """The least round trip of a byte, and the rate of a stream of some seconds."""
    with _connected(address, port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(ECHOES):
            start = perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            trips.append(perf_counter() - start)
        until = monotonic() + seconds
        while monotonic() < until:
            connection.sendall(_BLOCK)
        connection.shutdown(socket.SHUT_WR)
        rate = b""
        while part := connection.recv(64):
            rate += part
    return {"round_trip_seconds": min(trips), "bits_per_second": 8 * float(rate)}


def _connected(address: str, port: int) -> socket.socket:
    """A connection to a server that may have to be waited for."""
    until = monotonic() + 10
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError:
            if monotonic() > until:
                raise
            sleep(0.05)


def main() -> None:
    """Play one of the two parts."""
    address, port, part, *rest = sys.argv[1:]
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if part == "serve":
        serve(address, int(port))
    else:
        print(json.dumps(ask(address, int(port), *map(float, rest))))


if __name__ == "__main__":
    main()
