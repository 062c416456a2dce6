"""The runtime on a real cluster of three nodes: exactly once whatever dies, scaling, ranks, orders."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from benchmarks.faults.case import FaultCase, Held, LiveFault
from benchmarks.faults.machine import Machine
from benchmarks.faults.run import FaultRun
from pecan_ray.errors import StateError
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.runtime import session
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers, times
from tests.ray.seeds_at_import import draw
from tests.ray.waiting import ENDS_S, until
from tests.ray.workers import ONE_BY_ONE, Together, living_worker, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 600


def niceness(actor: str) -> Any:
    handle: Any = ray.get_actor(actor, namespace="pecan")
    return ray.get(handle.__ray_call__.remote(lambda _: os.nice(0)))


def test_local_and_remote_workers_deliver_each_element_once_per_epoch(tmp_path: Path) -> None:
    """They draw numbers of their own though a module seeds the generator when it is imported."""
    pipe = numbers(ROWS).map(Together(tmp_path, 2), on="i").map(draw).batch(7)
    with pipe.iter_batches(epochs=2, workers=TWO) as it:
        batches = [(it.provenance, batch) for batch in it]
        assert "pecan:service" not in living_actors(), "a job that shares nothing starts no service"
    assert Counter(ids(batch for _, batch in batches)) == times(ROWS, 2)
    assert len({int(number) for _, batch in batches for number in batch["drawn"]}) == 2 * ROWS
    lengths = [split.elements or 0 for split in next(pipe.plan.sources()).splits()]
    for provenance, batch in batches:
        assert provenance is not None and provenance.rows == len(batch["i"])
        held = sum(
            min(stop >> OUTPUT_BITS, lengths[index]) - (start >> OUTPUT_BITS)
            for (_, _, index), spans in provenance.spans.items()
            for start, stop in spans
        )
        assert held == provenance.rows, "every batch tells which data it holds"
    for epoch in range(2):
        sizes = [len(batch["i"]) for provenance, batch in batches if provenance and provenance.epoch == epoch]
        assert len(sizes) == len(pipe) and sorted(sizes)[1:] == [7] * (len(sizes) - 1)
    assert len({provenance.worker for provenance, _ in batches if provenance}) > 1


def slow(i: Any) -> Any:
    time.sleep(0.002)
    return i


def test_scaling_in_and_out_keeps_every_element_and_workers_leave_the_controller_its_time() -> None:
    seen: Counter[int] = Counter()
    with numbers(1500).map(slow, on="i").batch(5).iter_batches(workers=TWO, **ONE_BY_ONE) as it:
        for step, batch in enumerate(it):
            seen.update(ids([batch]))
            if step == 0:
                (steers,) = (name for name in living_actors() if name.endswith(":controller"))
                assert niceness(living_worker("local", but=[])) > niceness(steers), "it answers in time"
            if step == 10:
                it.scale(local=1, remote=0)
            if step == 60:
                until(lambda: not [n for n in living_actors() if ":remote-" in n], "the remote worker still runs")
                it.scale(local=0, remote=2)
    assert seen == times(1500)


def kept_by_ray() -> tuple[int, ...]:
    """Count what Ray keeps for good: classes and methods in this process, and classes and functions in its table."""
    worker: Any = ray._private.worker.global_worker  # nothing public tells
    here, table = worker.function_actor_manager, worker.gcs_client
    sent = (table.internal_kv_keys(kind, b"fun", None) for kind in (b"ActorClass", b"RemoteFunction"))
    return tuple(map(len, (here._loaded_actor_classes, here._function_execution_info, *sent)))


def test_a_job_leaves_no_classes_in_ray_and_ends_a_guess_of_its_first_worker_that_was_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A right guess is the worker."""

    def wrong(spec: JobSpec, node: str, cpus: float) -> StartWorker | None:
        first = first_worker(spec, node, cpus)
        assert first is not None
        return replace(first, worker="pecan:first:local-7")

    def kept_behind_a_job() -> tuple[int, ...]:
        with numbers(64).batch(8).iter_batches(workers=ONE, job="first") as batches:
            found = ids([next(batches)])
            until(lambda: [name for name in living_actors() if "local" in name] == ["pecan:first:local-0"], "others")
            assert sorted(found + ids(batches)) == list(range(64))
        return kept_by_ray()

    kept = kept_behind_a_job()
    made: Any = ray._private.state.actors
    assert sum(actor["Name"] == "pecan:first:local-0" for actor in made().values()) == 1
    monkeypatch.setattr(session, "first_worker", wrong)
    assert kept_behind_a_job() == kept


# --- one sequence ---------------------------------------------------------------------------------------------

KILLED_AT, CUT_AT, GATE = 6, 15, 250


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def gated(folder: Path) -> Callable[[Any], Any]:
    """A function that comes no further than an element in the middle before a file is there."""

    def pass_on(i: Any) -> Any:
        if i == GATE:
            until((folder / "gate").exists, "the gate stays shut")
        return i

    return pass_on


def values(batches: Any) -> list[list[float]]:
    return [batch["i"].tolist() for batch in batches]


def test_the_sequence_is_the_same_for_any_workers_whatever_dies_and_across_a_cut(tmp_path: Path) -> None:
    changing = pecan.WeightSchedule([(0, [3, 1]), (60, [1, 3])], by="elements")
    pipe = numbers(400, seed=5).map(gated(tmp_path), on="i")
    pipe = pipe.mix(numbers(200, first=10_000, seed=5), weights=changing).map(noisy, on="i").batch(8)
    options: dict[str, Any] = {"order": "strict", "epochs": 2}
    with pipe.iter_batches(workers=TWO, **options) as it:
        got = values(islice(it, KILLED_AT))
        lose(it, maker(it))
        (tmp_path / "gate").touch()
        got += values(islice(it, CUT_AT - KILLED_AT))
        state = json.loads(json.dumps(it.state_dict()))
    with pytest.raises(StateError, match=r"order \(strict\) where this one has order \(relaxed\)"):
        pipe.iter_batches(workers=ONE, state=state, epochs=2)
    got += values(pipe.iter_batches(workers=pecan.Workers(remote=1, local=0), state=state, **options))
    assert got == values(pipe.iter_batches(debug=True, first_epoch=0, epochs=2)), "debug mode is one worker"


# --- a worker that is frozen; `python -m benchmarks.faults` and `make chaos` draw other faults -------------------

FROZEN = FaultCase(
    rows=1200,
    steps_s=(0.0, 0.0),
    element_s=0.005,
    workers=TWO,
    faults=(LiveFault("freeze", 0.3),),
    held=Held(800, losses=1),
)


def test_a_worker_that_is_frozen_is_fenced_and_killed_and_nothing_is_lost_comes_twice_or_is_left(
    three_nodes: Any, tmp_path: Path
) -> None:
    outcome = FaultRun(FROZEN, Machine(three_nodes), tmp_path).go(ENDS_S)
    assert not outcome.problems, outcome.problems
    assert outcome.done and outcome.lost >= 1
