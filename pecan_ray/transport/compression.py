"""Whether batches are compressed on their way to another node: measured speeds in, a codec and its reason out.

A byte that is not compressed takes 1/B seconds on a link of B bytes per second.  With a codec that shrinks data to
1/r and packs and unpacks C bytes per second it takes 1/C + 1/(B r): a stream compresses a batch and then sends it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

Codec: TypeAlias = Literal["none", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = ("lz4", "zstd")

LEAST_GAIN = 1.15
"""Compression must promise so many times the speed: the processors that it takes have other work."""
LEAST_LOT = 128 << 10
"""Smaller lots say more about the delay of a link than about its bandwidth."""
LEAST_IDLE = 0.05
"""A link that had nothing to carry for a smaller part of the time is what limits the flow."""
# Writes by which the link's speed is known, and bytes from the middle of a lot on which codecs are tried.
LOTS_MEASURED = 8
SAMPLE_BYTES = 1 << 20


def choose_compression(
    bandwidth_bytes_s: float,
    compress_bytes_s: Mapping[Codec, float],
    ratio: Mapping[Codec, float],
    *,
    wanted_bytes_s: float = math.inf,
) -> tuple[Codec, str]:
    """Return the codec that carries most bytes per second over a link, and why.

    `compress_bytes_s`: how many bytes a codec packs and unpacks in a second; `ratio`: bytes before by bytes after;
    `wanted_bytes_s`: what it has to carry, infinite where that is more than it does.
    """
    link = f"the link carries {_mb(bandwidth_bytes_s)}"
    if wanted_bytes_s <= bandwidth_bytes_s:
        return "none", f"{link}, and {_mb(wanted_bytes_s)} are wanted"
    speeds = {
        codec: 1 / (1 / compress_bytes_s[codec] + 1 / (bandwidth_bytes_s * ratio[codec])) for codec in compress_bytes_s
    }
    if not speeds:
        return "none", f"{link}, and no codec is available"
    best = max(speeds, key=lambda codec: speeds[codec])
    gain = speeds[best] / bandwidth_bytes_s
    found = f"{best} at {_mb(compress_bytes_s[best])} and {ratio[best]:.1f} to 1 makes that {_mb(speeds[best])}"
    if gain < LEAST_GAIN:
        return "none", f"{link}; {found}, which does not gain {LEAST_GAIN:.2f} times"
    return best, f"{link}; {found}"


def _mb(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:.0f} MB/s"


class LinkMeter:
    """Estimates a link's bandwidth from the times at which lots were begun and confirmed: their bytes by their seconds.

    A lot that waited behind another is timed from that one's confirmation: so it does not matter if one confirmation
    is noticed late and the next one soon after.  The first lot, during which TCP finds its speed, does not count.  A
    lot is begun when there is a credit for it, and read as soon as it has arrived: so no time without credits is taken
    for the link's.  Times are in seconds.
    """

    def __init__(self) -> None:
        self.num_writes = 0
        """Lots that count."""
        self._open_writes: dict[int, tuple[float, int]] = {}
        self._bytes = self._sent_bytes = 0
        self._seconds = self._idle_s = 0.0
        self._first_s: float | None = None
        self._last_s = -math.inf

    def note_start(self, number: int, nbytes: int, now_s: float) -> None:
        """Note that a lot is about to be written."""
        if self._first_s is None:
            self._first_s = now_s
        # Nothing was under way since the last confirmation: the link had nothing to carry.
        elif not self._open_writes:
            self._idle_s += now_s - self._last_s
        self._open_writes[number] = (now_s, nbytes)

    def confirmed(self, number: int, now_s: float) -> None:
        """Note that a lot has arrived."""
        if number not in self._open_writes:
            return
        begun_s, nbytes = self._open_writes.pop(number)
        first, seconds = self._last_s == -math.inf, now_s - max(begun_s, self._last_s)
        self._last_s = now_s
        self._sent_bytes += nbytes
        if nbytes >= LEAST_LOT and not first:
            self.num_writes += 1
            self._bytes += nbytes
            self._seconds += seconds

    @property
    def ready(self) -> bool:
        """Tell whether enough lots were measured to decide."""
        return self.num_writes >= LOTS_MEASURED

    @property
    def bandwidth_bytes_s(self) -> float:
        """What the link carries."""
        return self._bytes / max(self._seconds, 1e-9)

    @property
    def required_bytes_s(self) -> float:
        """What the link has to carry: as much as the worker makes, and the trainer has room for.

        A link that hardly ever had nothing to carry carried less than was wanted: then the answer is infinite.
        """
        elapsed_s = self._last_s - (self._first_s or 0.0)
        if self._idle_s < LEAST_IDLE * elapsed_s or elapsed_s <= 0:
            return math.inf
        return self._sent_bytes / elapsed_s


def measure_compression(sample: pa.Buffer) -> tuple[dict[Codec, float], dict[Codec, float]]:
    """Pack and unpack a piece of a batch; return bytes per second and ratio of each codec that there is."""
    speeds: dict[Codec, float] = {}
    ratios: dict[Codec, float] = {}
    start = max(0, (sample.size - SAMPLE_BYTES) // 2)
    piece = sample.slice(start, min(SAMPLE_BYTES, sample.size))
    for codec in CODECS:
        if not pa.Codec.is_available(codec):
            continue
        started = time.perf_counter()
        packed = pack(piece, codec)
        unpack(packed, piece.size, codec)
        speeds[codec] = piece.size / max(time.perf_counter() - started, 1e-9)
        ratios[codec] = piece.size / max(packed.size, 1)
    return speeds, ratios


def pack(data: pa.Buffer, codec: Codec) -> Any:
    """Return compressed bytes as an Arrow buffer."""
    return pa.Codec(codec).compress(data)


def unpack(data: pa.Buffer, nbytes: int, codec: Codec) -> Any:
    """Return the `nbytes` that were compressed, in fresh memory of an Arrow buffer."""
    return pa.Codec(codec).decompress(data, decompressed_size=nbytes)
