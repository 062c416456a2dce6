"""The runtime on a real cluster of three nodes: exactly once whatever dies, scaling, ranks, errors, clean ends."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.conftest import living_actors
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, Together, living_worker, lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

MIB = 1 << 20
ROWS = 600
MANY = 3000
"""More than a trainer that takes them one by one holds ahead, however fast workers are."""


def numbers(rows: int = ROWS, **options: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(rows)), name="numbers", **options)


def slow(i: Any) -> Any:
    time.sleep(0.002)
    return i


def ids(batches: Any) -> Counter[int]:
    return Counter(int(i) for batch in batches for i in batch["i"])


def once(rows: int = ROWS, times: int = 1) -> Counter[int]:
    return Counter(dict.fromkeys(range(rows), times))


def test_local_and_remote_workers_deliver_each_element_once_per_epoch(tmp_path: Path) -> None:
    pipe = numbers().map(Together(tmp_path, 2), on="i").batch(7)
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1, remote=1)) as it:
        batches = [(it.provenance, batch) for batch in it]
        assert "pecan:service" not in living_actors(), "a job that shares nothing starts no service"
    assert ids(batch for _, batch in batches) == once(times=2)
    for provenance, batch in batches:
        assert provenance is not None and provenance.rows == len(batch["i"])
        held = sum((stop >> 32) - (start >> 32) for spans in provenance.spans.values() for start, stop in spans)
        assert held == provenance.rows, "every batch tells which data it holds"
    for epoch in range(2):
        sizes = [len(batch["i"]) for provenance, batch in batches if provenance and provenance.epoch == epoch]
        assert len(sizes) == len(pipe) and sorted(sizes)[1:] == [7] * (len(sizes) - 1)
    assert len({provenance.worker for provenance, _ in batches if provenance}) > 1


def test_a_killed_worker_loses_and_repeats_nothing() -> None:
    pipe = numbers(MANY).map(slow, on="i").batch(5)
    killed: list[str] = []
    seen: Counter[int] = Counter()
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1, remote=1), **ONE_BY_ONE) as it:
        for step, batch in enumerate(it):
            seen.update(int(i) for i in batch["i"])
            if step in (20, 90):
                killed.append(living_worker("remote", but=killed))
                lose(it, killed[-1])
        report = it.report()
    assert seen == once(MANY, times=2)
    assert len(killed) == report.workers_lost == 2


def test_scaling_in_and_out_while_it_runs_keeps_every_element() -> None:
    pipe = numbers(1500).map(slow, on="i").batch(5)
    seen: Counter[int] = Counter()
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=2)) as it:
        for step, batch in enumerate(it):
            seen.update(int(i) for i in batch["i"])
            if step == 10:
                it.scale(local=1, remote=0)
            if step == 60:
                until(lambda: not [n for n in living_actors() if ":remote-" in n], "remote workers still run")
                it.scale(local=2, remote=1)
            if step == 120:
                it.scale(local=0, remote=2)
    assert seen == once(1500)


def test_static_sharding() -> None:
    workers = pecan.Workers(local=1, remote=1)
    with numbers(100).batch(7).iter_batches(epochs=2, sharding="static", workers=workers) as it:
        assert ids(it) == once(100, 2)


def test_a_worker_without_a_place_is_named_and_waited_for(three_nodes: Any) -> None:
    config = pecan.Config(remote_labels={"zone": "moon"}, placement_warning_s=0.5)
    pipe = numbers(MANY, config=config).map(slow, on="i").batch(8)
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1)) as it:
        next(it)
        until(lambda: any("zone=moon" in e.text for e in it.report().events), "no word about the missing label")
        next(it)
    with pytest.raises(StopIteration):
        next(it)


def text_of_a_mebibyte(i: int, told: str) -> str:
    with open(told, "ab") as file:
        file.write(b".")
    return "x" * MIB


def test_workers_stay_as_far_ahead_of_a_trainer_as_bytes_allow_where_batches_are_texts(tmp_path: Path) -> None:
    told = tmp_path / "made"
    pipe = pecan.PecanPipeline(
        pecan.sources.Items([{"i": i} for i in range(400)]),
        name="texts",
        config=pecan.Config(ring_bytes=4 * MIB, threads_per_worker=1, reorder="off", progress=False),
    )
    pipe = pipe.map(partial(text_of_a_mebibyte, told=str(told)), on="i").batch(2)
    seen: list[int] = []

    def still() -> bool:
        seen.append(told.stat().st_size)
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    with pipe.iter_batches(workers=pecan.Workers(1), prefetch_bytes=4 * MIB) as batches:
        next(batches)
        until(still, "the worker does not come to rest")
    assert seen[-1] < 100
