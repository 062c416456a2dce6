"""Arrow Flight on a real cluster: remote workers deliver by it, whatever breaks, and fall back where it is closed."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.transport.choice import FlightAddress
from tests.ray.conftest import living_actors
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, Together, lose, maker
from tests.unit.transport.flight_rig import Wire

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 1200
SIDE = 96
"""A batch of 8 rows has 290 KB, so that it travels alone and without a copy."""


def square(i: Any) -> Any:
    return np.full((SIDE, SIDE), i, np.int32)


def squares(rows: int = ROWS, function: Callable[[Any], Any] = square, **config: Any) -> pecan.PecanPipeline:
    """Elements of 36 KB that hold their own number everywhere."""
    source = pecan.sources.Arrays(i=np.arange(rows))
    pipe = pecan.PecanPipeline(source, name="squares", config=pecan.Config(**config))
    return pipe.map(function, on="i", name="square").batch(8)


def ids(batch: Any) -> list[int]:
    """The elements of a batch; fails if any of them is damaged."""
    assert (batch["i"] == batch["i"][:, :1, :1]).all()
    return [int(i) for i in batch["i"][:, 0, 0]]


def once(rows: int = ROWS, times: int = 1) -> Counter[int]:
    return Counter(dict.fromkeys(range(rows), times))


def told(report: Any) -> str:
    return "\n".join(event.text for event in report.events)


def test_remote_workers_deliver_each_element_once_by_flight_and_what_the_trainer_keeps_is_its_own(
    tmp_path: Path,
) -> None:
    together = Together(tmp_path, 2)
    pipe = squares(function=lambda i: square(together(i)), flight_streams=2)
    with pipe.iter_batches(epochs=3, workers=pecan.Workers(local=0, remote=2), job="by-flight") as it:
        kept = list(it)
        text = told(it.report())
    assert all(batch["i"].flags.writeable and batch["i"].flags.aligned for batch in kept)
    until(lambda: not living_actors(), "the workers are not gone")
    gc.collect()
    assert Counter(i for batch in kept for i in ids(batch)) == once(times=3)
    for batch in kept:
        batch["i"] += 1
    assert Counter(i - 1 for batch in kept for i in ids(batch)) == once(times=3)
    for number in range(2):
        assert f"remote-{number} -> rank 0 by flight: worker and trainer are on different nodes" in text
    assert "object_store" not in text


def test_a_closed_port_is_told_and_the_object_store_steps_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlightAddress, "location", property(lambda self: "grpc+tcp://127.0.0.1:9"))
    with squares(400).iter_batches(workers=pecan.Workers(local=0, remote=1), epochs=2) as it:
        assert Counter(i for batch in it for i in ids(batch)) == once(400, times=2)
        text = told(it.report())
    assert "by object_store from now on" in text and "cannot be read: Flight" in text


def test_a_worker_that_is_gone_without_a_word_from_the_network_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wires: dict[int, Wire] = {}
    real: Any = FlightAddress.location

    def silent(address: FlightAddress) -> str:
        if address.port not in wires:
            wires[address.port] = Wire(address, [], silent=True)
        return str(real.fget(wires[address.port].address))

    monkeypatch.setattr(FlightAddress, "location", property(silent))
    seen: Counter[int] = Counter()
    with squares().iter_batches(epochs=2, workers=pecan.Workers(local=0, remote=1), **ONE_BY_ONE) as it:
        for step, batch in enumerate(it):
            seen.update(ids(batch))
            if step == 30:
                lose(it, maker(it))
        report = it.report()
    assert seen == once(times=2) and report.workers_lost == 1
    assert "object_store" not in told(report)
    for wire in wires.values():
        wire.close()
