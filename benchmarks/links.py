"""The transports of benchmarks/transport.py between two network namespaces, over links of a given speed and delay.

    python benchmarks/links.py [--gbit 1 5 10] [--delay-ms 0] [--rounds 5] [--json FOLDER]

Needs root, `ip` and `tc`.  Without a delay the link is a pair of virtual Ethernet devices that `tc` (tbf) slows down.
With one it is two tunnel devices, between which this program carries the packets late and at the speed of the link:
that works without the kernel's netem, up to about 1 Gb/s.  Everything made here is taken away at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
HOSTS = ("10.213.0.1", "10.213.0.2")
PORT = 6399
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TUNNEL_MTU = 65_000
LINE_BYTES = 32 << 20
"""What waits in a slow line before it drops packets."""
ONLY = ["flight", "object store, other node", "TCP"]


def command(*words: str) -> None:
    """Run a program; raises if it fails."""
    subprocess.run(words, check=True)


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with names that nobody else has."""
    mark = secrets.token_hex(3)
    names = (f"pecan-{mark}-a", f"pecan-{mark}-b")
    made = []
    try:
        for name in names:
            command("ip", "netns", "add", name)
            made.append(name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            command("ip", "netns", "del", name)


def bring_up(space: str, device: str, host: str) -> None:
    """Give a device its address."""
    command("ip", "-n", space, "address", "add", f"{host}/24", "dev", device)
    command("ip", "-n", space, "link", "set", device, "up")


@contextlib.contextmanager
def cable(spaces: tuple[str, str], gbit: float) -> Iterator[None]:
    """Virtual Ethernet between two namespaces, slowed down by tc; it goes with the namespaces."""
    devices = [f"{space[-8:]}v" for space in spaces]
    command("ip", "link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
    for space, device, host in zip(spaces, devices, HOSTS, strict=True):
        command("ip", "link", "set", device, "netns", space)
        bring_up(space, device, host)
        shape = ("tbf", "rate", f"{gbit}gbit", "burst", "1mb", "latency", "20ms")
        command("tc", "-n", space, "qdisc", "add", "dev", device, "root", *shape)
    yield


@contextlib.contextmanager
def line(spaces: tuple[str, str], gbit: float, delay_s: float) -> Iterator[None]:
    """Two tunnel devices, between which packets are carried late."""
    ends = []
    for space, host in zip(spaces, HOSTS, strict=True):
        device = f"{space[-8:]}t"
        end = os.open("/dev/net/tun", os.O_RDWR)
        ends.append(end)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        command("ip", "link", "set", device, "netns", space)
        command("ip", "-n", space, "link", "set", device, "mtu", str(TUNNEL_MTU))
        bring_up(space, device, host)
    for source, target in (ends, reversed(ends)):
        Carrier(source, target, gbit * 1e9 / 8, delay_s).start()
    try:
        yield
    finally:
        for end in ends:
            os.close(end)


class Carrier:
    """Carries packets one way: each leaves when the one before has left, and arrives after the delay."""

    def __init__(self, source: int, target: int, bytes_s: float, delay_s: float) -> None:
        self._source, self._target, self._bytes_s, self._delay_s = source, target, bytes_s, delay_s
        self._under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def start(self) -> None:
        """Begin; both threads end when the devices are closed."""
        for work in (self._take, self._bring):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        free_s = 0.0
        with contextlib.suppress(OSError):
            while packet := os.read(self._source, 1 << 16):
                now = time.monotonic()
                if (free_s - now) * self._bytes_s > LINE_BYTES:
                    continue
                free_s = max(free_s, now) + len(packet) / self._bytes_s
                self._under_way.put((free_s + self._delay_s, packet))

    def _bring(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, packet = self._under_way.get()
                time.sleep(max(0.0, due_s - time.monotonic()))
                os.write(self._target, packet)


@contextlib.contextmanager
def cluster(spaces: tuple[str, str]) -> Iterator[None]:
    """A Ray node in each namespace."""
    folder = tempfile.mkdtemp(prefix="pecan-links-")
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_TMPDIR=folder, PYTHONPATH=str(ROOT))
    ray = str(Path(sys.executable).with_name("ray"))
    common = ("--block", "--num-cpus=2", f"--object-store-memory={1 << 30}", "--disable-usage-stats")
    head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}")
    nodes = []
    try:
        for space, host, role in zip(spaces, HOSTS, (head, (f"--address={HOSTS[0]}:{PORT}",)), strict=True):
            words = ("ip", "netns", "exec", space, ray, "start", f"--node-ip-address={host}", *role, *common)
            log = (Path(folder) / f"{space}.log").open("wb")
            nodes.append(subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True))
            wait_for(space, len(nodes))
        yield
    finally:
        for node in reversed(nodes):
            node.send_signal(signal.SIGTERM)
            node.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(space: str, nodes: int) -> None:
    """Wait until a cluster has so many nodes."""
    look = f"import ray; ray.init('{HOSTS[0]}:{PORT}', logging_level='ERROR'); assert len(ray.nodes()) >= {nodes}"
    deadline = time.monotonic() + 90
    while subprocess.run(("ip", "netns", "exec", space, sys.executable, "-c", look), capture_output=True).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the Ray node in the namespace {space} did not come up within 90 s")
        time.sleep(1)


def main() -> None:
    """Measure over every link that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gbit", type=float, nargs="*", default=[1.0, 5.0, 10.0])
    parser.add_argument("--delay-ms", type=float, nargs="*", default=[0.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, default=60, help="large batches in one measurement")
    parser.add_argument("--small", type=int, default=5000, help="small batches in one measurement")
    parser.add_argument("--json", type=Path, help="folder for a file of each link")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all is taken away
    for gbit in args.gbit:
        for delay_ms in args.delay_ms:
            with namespaces() as spaces:
                link = line(spaces, gbit, delay_ms / 1000) if delay_ms else cable(spaces, gbit)
                with link, cluster(spaces):
                    print(f"\n## {gbit:g} Gb/s, {delay_ms:g} ms each way\n", flush=True)
                    words = ["ip", "netns", "exec", spaces[0], sys.executable, str(ROOT / "benchmarks/transport.py")]
                    words += ["--address", f"{HOSTS[0]}:{PORT}", "--rounds", str(args.rounds)]
                    words += ["--large", str(args.large), "--small", str(args.small)]
                    if args.json is not None:
                        words += ["--json", str(args.json / f"link-{gbit:g}gbit-{delay_ms:g}ms.json")]
                    command(*words, "--only", *ONLY)


if __name__ == "__main__":
    main()
