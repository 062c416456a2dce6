"""Whether compression pays: decided from measured speeds alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.transport.compression import (
    LEAST_GAIN,
    LOTS_MEASURED,
    Codec,
    LinkMeter,
    choose_compression,
    measure_compression,
    pack,
    unpack,
)

SPEED: dict[Codec, float] = {"lz4": 600e6, "zstd": 200e6}
RATIO: dict[Codec, float] = {"lz4": 2.0, "zstd": 3.0}


@pytest.mark.parametrize(
    ("bandwidth", "ratio", "wanted", "codec", "reason"),
    [
        (1.25e9, RATIO, math.inf, "none", "1250 MB/s"),
        (125e6, RATIO, math.inf, "lz4", "125 MB/s"),
        (12.5e6, RATIO, math.inf, "zstd", "12 MB/s"),
        (1e6, {"lz4": 1.0, "zstd": 1.01}, math.inf, "none", "does not gain"),
        (10e6, RATIO, 9e6, "none", "the link carries 10 MB/s, and 9 MB/s are wanted"),
    ],
)
def test_the_slower_the_link_the_stronger_the_codec_if_it_gains_and_is_wanted(
    bandwidth: float, ratio: dict[Codec, float], wanted: float, codec: str, reason: str
) -> None:
    chosen, told = choose_compression(bandwidth, SPEED, ratio, wanted_bytes_s=wanted)
    assert chosen == codec and reason in told


speeds = st.floats(1e5, 1e11)


@given(speeds, speeds, speeds, st.floats(0.9, 50), st.floats(0.9, 50))
def test_the_choice_is_never_slower_than_no_codec(link: float, lz4: float, zstd: float, r1: float, r2: float) -> None:
    speed: dict[Codec, float] = {"lz4": lz4, "zstd": zstd}
    ratio: dict[Codec, float] = {"lz4": r1, "zstd": r2}
    codec, _ = choose_compression(link, speed, ratio)
    seconds: dict[Codec, float] = {name: 1 / speed[name] + 1 / (link * ratio[name]) for name in speed}
    if codec == "none":
        assert all(1 / link <= LEAST_GAIN * each * (1 + 1e-9) for each in seconds.values())
    else:
        assert LEAST_GAIN * seconds[codec] <= (1 / link) * (1 + 1e-9)
        assert seconds[codec] == min(seconds.values())


def meter_of(*lots: tuple[float, float], nbytes: int = 10_000_000) -> LinkMeter:
    """A meter of lots, each begun and confirmed at a time in seconds."""
    meter = LinkMeter()
    for number, (begun_s, confirmed_s) in enumerate(lots):
        meter.note_start(number, nbytes, now_s=begun_s)
        meter.confirmed(number, confirmed_s)
    return meter


@pytest.mark.parametrize("noticed_s", [[0.3, 0.4, 0.5, 0.6], [0.3, 0.499, 0.5, 0.6], [0.3, 0.5999, 0.59995, 0.6]])
def test_bandwidth_does_not_depend_on_when_confirmations_are_noticed(noticed_s: list[float]) -> None:
    meter = LinkMeter()
    for number in range(len(noticed_s)):
        meter.note_start(number, 10_000_000, now_s=0.1 * number)
        if number:
            meter.confirmed(number - 1, noticed_s[number - 1])
    meter.confirmed(len(noticed_s) - 1, noticed_s[-1])
    assert meter.num_writes == 3 and not meter.ready
    assert meter.bandwidth_bytes_s == pytest.approx(100e6)


def test_time_without_credits_small_lots_and_those_of_another_stream_say_nothing_of_the_link() -> None:
    meter = meter_of((0.0, 1.0), (1.0, 1.1), (61.0, 61.1), (61.1, 61.2))
    assert meter.num_writes == 3
    assert meter.bandwidth_bytes_s == pytest.approx(100e6)
    assert meter.required_bytes_s == pytest.approx(40e6 / 61.2)
    small = meter_of(*((number, number + 0.5) for number in range(20)), nbytes=1000)
    small.confirmed(99, now_s=30.0)
    assert small.num_writes == 0 and small.bandwidth_bytes_s == 0.0


@pytest.mark.parametrize(("idle_s", "wanted"), [(1.0, pytest.approx(9e6 / 17)), (0.02, math.inf)])
def test_a_link_that_had_nothing_to_do_has_carried_all_that_was_wanted(idle_s: float, wanted: float) -> None:
    """It carries a lot in a second, and has nothing to do for a while before the next."""
    begun = [number * (1 + idle_s) for number in range(LOTS_MEASURED + 1)]
    meter = meter_of(*((at, at + 1) for at in begun), nbytes=1_000_000)
    assert meter.ready and meter.bandwidth_bytes_s == pytest.approx(1e6)
    assert meter.required_bytes_s == wanted


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("data", [b"", b"a", np.arange(100_000).tobytes()])
def test_packing_and_unpacking_returns_the_same(codec: Any, data: bytes) -> None:
    assert unpack(pack(pa.py_buffer(data), codec), len(data), codec).to_pybytes() == data


def test_codecs_are_measured_on_the_data_at_hand() -> None:
    flat, noise = np.zeros(3_000_000, np.uint8), np.random.default_rng(0).bytes(3_000_000)
    fast, shrunk = measure_compression(pa.py_buffer(flat))
    _, kept = measure_compression(pa.py_buffer(noise))
    assert set(fast) == {"lz4", "zstd"} and min(fast.values()) > 0
    assert min(shrunk.values()) > 50 and max(kept.values()) < 1.01
