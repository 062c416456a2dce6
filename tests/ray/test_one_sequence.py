"""order="strict" on real workers: the same batches in the same order, whoever makes them and whatever happens."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import StateError
from tests.long_form import some_later

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS, SIZE, KILLED_AT, CUT_AT, GATE = 400, 8, 6, 15, 250


def numbers(rows: int = ROWS, first: int = 0) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(first, first + rows)), name="sequence", seed=5)


def spread(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(row["i"] % 3):
        yield {"i": row["i"] + part / 10}


def uneven(i: Any) -> Any:
    if i % 8 == 0:
        time.sleep(0.005)
    return i


def uneven_tensors(i: Any) -> Any:
    import tensorflow as tf

    return tf.ensure_shape(tf.numpy_function(uneven, [i], i.dtype), [])


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def gated(gate: Path) -> Callable[[Any], Any]:
    """A function that comes no further than an element in the middle before a file is there."""

    def pass_on(i: Any) -> Any:
        while i == GATE and not gate.exists():
            time.sleep(0.02)
        return i

    return pass_on


def length(row: dict[str, Any]) -> int:
    return int(row["i"]) % 40


CHANGING = pecan.WeightSchedule([(0, [3, 1]), (60, [1, 3])], by="elements")
PLANS: dict[str, Callable[[pecan.PecanPipeline], pecan.PecanPipeline]] = {
    "filtered and spread": lambda p: (
        p.filter(lambda i: i % 5 > 0, on="i").flat_map(spread).map(noisy, on="i").batch(SIZE)
    ),
    "shuffled": lambda p: p.map(noisy, on="i").shuffle(60).batch(SIZE),
    "repeated": lambda p: p.map(noisy, on="i").repeat(2).shuffle(20).batch(SIZE, drop_remainder=True),
    "in buckets": lambda p: p.bucket_by_length([10, 20], sizes=[SIZE, 4, 2], length=length),
    "mixed": lambda p: p.mix(numbers(200, 10_000), weights=CHANGING).map(noisy, on="i").batch(SIZE),
}


def values(batches: Any) -> list[list[float]]:
    return [batch["i"].tolist() for batch in batches]


def kill(worker: str) -> None:
    actor = ray.get_actor(worker, namespace="pecan")
    os.kill(ray.get(actor.placed.remote())[1], signal.SIGKILL)


@pytest.mark.parametrize("plan", some_later(PLANS, "repeated", "in buckets", "shuffled", "filtered and spread"))
def test_the_sequence_is_the_same_for_any_workers_whatever_dies_and_across_a_cut(plan: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pipe = PLANS[plan](numbers().map(gated(gate), on="i"))
    options: dict[str, Any] = {"order": "strict", "epochs": 2}
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), **options) as it:
        got = values(islice(it, KILLED_AT))
        assert it.provenance is not None
        kill(it.provenance.worker)
        gate.touch()
        got += values(islice(it, CUT_AT - KILLED_AT))
        state = json.loads(json.dumps(it.state_dict()))
    with pytest.raises(StateError, match=r"order \(strict\) where this one has order \(relaxed\)"):
        pipe.iter_batches(workers=pecan.Workers(local=1), state=state, epochs=2)
    got += values(pipe.iter_batches(workers=pecan.Workers(remote=1, local=0), state=state, **options))
    assert got == values(pipe.iter_batches(debug=True, first_epoch=0, epochs=2)), "debug mode is one worker"


@pytest.mark.slow
def test_ranks_have_the_batches_in_turn_also_behind_a_cut_on_fewer_of_them(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pipe = numbers().map(gated(gate), on="i").map(noisy, on="i").batch(SIZE)
    options: dict[str, Any] = {"order": "strict"}

    def begin(rank: int) -> Any:
        job: dict[str, Any] = {"rank": rank, "world_size": 3, "job": "in-turn"}
        return pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), **job, **options)

    with ThreadPoolExecutor(3) as pool:
        iterators = list(pool.map(begin, range(3)))
        parts = list(pool.map(lambda it: values(islice(it, 4)), iterators))
        kill(iterators[0].provenance.worker)
        gate.touch()
        more = list(pool.map(lambda it: values(islice(it, 5)), iterators))
        state = iterators[1].state_dict()
        list(pool.map(lambda it: it.close(), iterators))
    steps = [batch for some in (parts, more) for step in zip(*some, strict=True) for batch in step]
    rest = values(pipe.iter_batches(workers=pecan.Workers(local=1), state=state, **options))
    assert steps + rest == values(pipe.iter_batches(workers=pecan.Workers(local=1), first_epoch=0, **options))


@pytest.mark.parametrize("engine", some_later(["python", "tensorflow"], "tensorflow"))
def test_one_fixed_worker_keeps_the_order_of_the_source_by_default(engine: Any) -> None:
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    pipe = pecan.PecanPipeline(source, engine=engine, config=pecan.Config(threads_per_worker=4))
    pipe = pipe.map(uneven_tensors if engine == "tensorflow" else uneven, on="i").batch(SIZE)
    with pipe.iter_batches(workers=pecan.Workers(local=1), epochs=2) as batches:
        assert np.ravel(values(batches)).tolist() == [*range(ROWS)] * 2
        assert "order: rows come in the order of the source" in batches.explain()
