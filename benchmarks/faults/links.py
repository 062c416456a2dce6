"""Networks of the nodes of a cluster on one machine, and the links between them, which can be slow or cut.

Each node but the first has a network namespace of its own.  All packets between two of them go through one program,
this one, which can hold them back for a while or lose them: `tc netem` does the same where the kernel has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shutil import which
from typing import IO

TUN = "/dev/net/tun"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 60_000
"""Large, so that this program has few packets to move."""
PACKETS = 64
"""Read from one link before another one's turn."""
NODES = 4
NAMES = "/run"
"""Where names of networks are kept: a folder of this program's own, beside whoever else makes some."""
APART = ("--net", "--mount")
"""What the program has of its own that makes such networks."""


@dataclass(frozen=True)
class NodeLinks:
    """The links of nodes 1 to 4, of which the first one is in this program's network."""

    orders: IO[str]

    def set(self, node: int, delay_s: float, lost: float) -> None:
        """Hold packets to and from a node back for so long, and lose such a share of them: 1 cuts the link."""
        self.orders.write(f"{node} {delay_s} {lost}\n")
        self.orders.flush()

    def restore(self, node: int) -> None:
        """Let it be fast and sound again."""
        self.set(node, 0.0, 0.0)


def address(node: int) -> str:
    """Return the address of a node."""
    return f"10.77.0.{node}"


def inside(node: int, shm_bytes: int) -> list[str]:
    """Return the command that runs another one in a node's network, with a /dev/shm of its own."""
    mounted = f'mount -t tmpfs -o size={shm_bytes} tmpfs /dev/shm && exec "$0" "$@"'
    return ["nsenter", f"--net=/run/netns/pecan{node}", "unshare", "--mount", "sh", "-c", mounted]


def apart() -> list[str]:
    """Return the command that runs another one where it may make networks and mount; empty where that cannot be."""
    if not (which("unshare") and which("nsenter") and which("ip") and os.access(TUN, os.R_OK | os.W_OK)):
        return []
    command = ["unshare", *APART, *(() if os.geteuid() == 0 else ("--map-root-user",))]
    tried = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", NAMES], capture_output=True)
    return command if tried.returncode == 0 else []


@contextlib.contextmanager
def links() -> Iterator[NodeLinks]:
    """Make the networks, in a program that `apart` has started, and let packets go between them."""
    _run("mount", "-t", "tmpfs", "tmpfs", NAMES)
    _run("ip", "link", "set", "lo", "up")
    files = [_network(node) for node in range(1, NODES + 1)]
    program = [sys.executable, "-m", "benchmarks.faults.links", *map(str, files)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=files, text=True) as running:
        assert running.stdin is not None
        try:
            yield NodeLinks(running.stdin)
        finally:
            running.stdin.close()
            for file in files:
                os.close(file)


def _network(node: int) -> int:
    """Make a node's network with its link; return the file that has the link's packets."""
    name = f"pecan{node}"
    file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    within: tuple[str, ...] = ("ip",)
    if node > 1:
        within = ("ip", "-n", name)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "set", name, "netns", name)
        _run(*within, "link", "set", "lo", "up")
    _run(*within, "addr", "add", f"{address(node)}/24", "dev", name)
    _run(*within, "link", "set", name, "mtu", str(MTU), "up")
    # Programs find their own address by a route to anywhere.
    _run(*within, "route", "add", "default", "dev", name)
    return file


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


class Switch:
    """Moves packets between links, late or never."""

    def __init__(self, files: Sequence[int]) -> None:
        """`files`: of the links of nodes 1, 2 and so on."""
        self._links = {bytes((10, 77, 0, node)): file for node, file in enumerate(files, 1)}
        self._hurt: dict[bytes, tuple[float, float]] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._rng = random.Random(0)
        self._moved = 0

    def run(self, orders: int) -> None:
        """Move packets until the file of orders ends."""
        with selectors.DefaultSelector() as selector:
            for file in (*self._links.values(), orders):
                selector.register(file, selectors.EVENT_READ)
            while True:
                wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
                for key, _ in selector.select(wait):
                    if key.fd != orders:
                        self._read(key.fd)
                    elif not self._apply_order_update(os.read(orders, 1 << 16).decode()):
                        return
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, file, packet = heapq.heappop(self._late)
                    _write(file, packet)

    def _apply_order_update(self, orders: str) -> bool:
        """Let links be as the lines say; False if there are none any more."""
        for line in orders.splitlines():
            node, delay, lost = line.split()
            self._hurt[bytes((10, 77, 0, int(node)))] = (float(delay), float(lost))
        return bool(orders)

    def _read(self, file: int) -> None:
        for _ in range(PACKETS):
            try:
                packet = os.read(file, MTU + 100)
            except BlockingIOError:
                return
            source, target = packet[12:16], packet[16:20]
            if packet[0] >> 4 == 4 and target in self._links:
                self._move(packet, (source, target))

    def _move(self, packet: bytes, ends: tuple[bytes, bytes]) -> None:
        delay = 0.0
        for end in ends:
            late, lost = self._hurt.get(end, (0.0, 0.0))
            if self._rng.random() < lost:
                return
            delay += late
        if not delay:
            _write(self._links[ends[1]], packet)
            return
        self._moved += 1
        heapq.heappush(self._late, (time.monotonic() + delay, self._moved, self._links[ends[1]], packet))


def _write(file: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # lost, as packets are whose queue is full
        os.write(file, packet)


if __name__ == "__main__":
    Switch([int(file) for file in sys.argv[1:]]).run(sys.stdin.fileno())
