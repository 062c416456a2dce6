"""The runtime on a real cluster of three nodes: exactly once whatever dies, scaling, ranks, plans, orders."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import StateError
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.runtime import session
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers, times
from tests.ray.seeds_at_import import draw
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, Together, living_worker, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

MIB = 1 << 20
ROWS = 600
MANY = 3000
"""More than a trainer that takes them one by one holds ahead, however fast workers are."""


def slow(i: Any) -> Any:
    time.sleep(0.002)
    return i


def test_local_and_remote_workers_deliver_each_element_once_per_epoch(tmp_path: Path) -> None:
    pipe = numbers(ROWS).map(Together(tmp_path, 2), on="i").batch(7)
    with pipe.iter_batches(epochs=2, workers=TWO) as it:
        batches = [(it.provenance, batch) for batch in it]
        assert "pecan:service" not in living_actors(), "a job that shares nothing starts no service"
    assert Counter(ids(batch for _, batch in batches)) == times(ROWS, 2)
    for provenance, batch in batches:
        assert provenance is not None and provenance.rows == len(batch["i"])
        held = sum((stop >> 32) - (start >> 32) for spans in provenance.spans.values() for start, stop in spans)
        assert held == provenance.rows, "every batch tells which data it holds"
    for epoch in range(2):
        sizes = [len(batch["i"]) for provenance, batch in batches if provenance and provenance.epoch == epoch]
        assert len(sizes) == len(pipe) and sorted(sizes)[1:] == [7] * (len(sizes) - 1)
    assert len({provenance.worker for provenance, _ in batches if provenance}) > 1


def niceness(actor: str) -> Any:
    handle: Any = ray.get_actor(actor, namespace="pecan")
    return ray.get(handle.__ray_call__.remote(lambda _: os.nice(0)))


def test_a_killed_worker_loses_and_repeats_nothing() -> None:
    killed: list[str] = []
    seen: Counter[int] = Counter()
    with numbers(MANY).map(slow, on="i").batch(5).iter_batches(epochs=2, workers=TWO, **ONE_BY_ONE) as it:
        for step, batch in enumerate(it):
            seen.update(ids([batch]))
            if step == 5:
                (steers,) = (name for name in living_actors() if name.endswith(":controller"))
                assert niceness(living_worker("remote", [])) > niceness(steers), (
                    "it answers in time, whatever workers do"
                )
            if step in (20, 90):
                killed.append(living_worker("remote", but=killed))
                lose(it, killed[-1])
        report = it.report()
    assert seen == times(MANY, 2)
    assert len(killed) == report.workers_lost == 2


def test_scaling_in_and_out_while_it_runs_keeps_every_element() -> None:
    seen: Counter[int] = Counter()
    with numbers(1500).map(slow, on="i").batch(5).iter_batches(workers=pecan.Workers(local=1, remote=2)) as it:
        for step, batch in enumerate(it):
            seen.update(ids([batch]))
            if step == 10:
                it.scale(local=1, remote=0)
            if step == 60:
                until(lambda: not [n for n in living_actors() if ":remote-" in n], "remote workers still run")
                it.scale(local=2, remote=1)
            if step == 120:
                it.scale(local=0, remote=2)
    assert seen == times(1500)


def kept_by_ray() -> tuple[int, ...]:
    """Count what Ray keeps for good: classes and methods in this process, and classes and functions in its table."""
    worker: Any = ray._private.worker.global_worker  # nothing public tells
    here, table = worker.function_actor_manager, worker.gcs_client
    sent = (table.internal_kv_keys(kind, b"fun", None) for kind in (b"ActorClass", b"RemoteFunction"))
    return tuple(map(len, (here._loaded_actor_classes, here._function_execution_info, *sent)))


def test_a_job_leaves_no_classes_of_its_own_in_the_program_and_in_ray() -> None:
    def run() -> tuple[int, ...]:
        with numbers(20).batch(10).iter_batches(workers=ONE) as it:
            assert len(ids(it)) == 20
        return kept_by_ray()

    assert run() == run() == run()


def test_static_sharding() -> None:
    with numbers(100).batch(7).iter_batches(epochs=2, sharding="static", workers=TWO) as it:
        assert Counter(ids(it)) == times(100, 2)


def test_a_graph_of_tensorflow_goes_on_from_a_state_with_what_was_not_yielded() -> None:
    pipe = numbers(ROWS, engine="tensorflow").map(lambda i: i + 1, on="i").shuffle(64).batch(8)
    with pipe.iter_batches(epochs=2, workers=ONE) as it:
        seen = ids(islice(it, 50))
        state = json.loads(json.dumps(it.state_dict()))
    with pipe.iter_batches(epochs=2, workers=ONE, state=state) as it:
        seen += ids(it)
    assert Counter(i - 1 for i in seen) == times(ROWS, 2)


def test_a_worker_without_a_place_is_named_and_waited_for() -> None:
    config = pecan.Config(remote_labels={"zone": "moon"}, placement_warning_s=0.5)
    with numbers(MANY, config=config).map(slow, on="i").batch(8).iter_batches(workers=TWO) as it:
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
    config = pecan.Config(ring_bytes=4 * MIB, threads_per_worker=1, reorder="off", progress=False)
    pipe = numbers(400, config=config).map(partial(text_of_a_mebibyte, told=str(told)), on="i").batch(2)
    seen: list[int] = []

    def still() -> bool:
        seen.append(told.stat().st_size)
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    with pipe.iter_batches(workers=ONE, prefetch_bytes=4 * MIB) as batches:
        next(batches)
        until(still, "the worker does not come to rest")
    assert seen[-1] < 100


def test_a_guess_of_the_first_worker_that_was_wrong_is_ended_and_a_right_one_is_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(spec: JobSpec, node: str, cpus: float) -> StartWorker | None:
        first = first_worker(spec, node, cpus)
        assert first is not None
        return replace(first, worker="pecan:first:local-7")

    def elements() -> list[int]:
        with numbers(64).batch(8).iter_batches(workers=ONE, job="first") as batches:
            found = ids([next(batches)])
            until(lambda: [name for name in living_actors() if "local" in name] == ["pecan:first:local-0"], "others")
            return sorted(found + ids(batches))

    assert elements() == list(range(64))
    made: Any = ray._private.state.actors
    assert sum(actor["Name"] == "pecan:first:local-0" for actor in made().values()) == 1
    monkeypatch.setattr(session, "first_worker", wrong)
    assert elements() == list(range(64))


# --- plans ----------------------------------------------------------------------------------------------------


def doubled(element: Any) -> list[Any]:
    return [element, element]


def test_several_workers_yield_what_one_process_yields() -> None:
    pipe = numbers(200).filter(lambda i: i % 3 > 0, on="i").flat_map(doubled).concat(numbers(50, first=1000))
    pipe = pipe.mix(numbers(50, first=2000), weights=[1, 2]).repeat(3).shuffle(30).batch(8)
    pipe = pipe.map(lambda b: {"i": b["i"] + 1}, name="next").unbatch().batch(7)
    expected = list(pipe.iter_batches(debug=True))
    with pipe.iter_batches(epochs=2, workers=TWO) as it:
        batches = list(it)
    assert Counter(ids(batches)) == Counter(ids(expected * 2))
    assert len(batches) == 2 * len(expected)


def test_workers_draw_numbers_of_their_own_though_a_module_seeds_when_it_is_imported() -> None:
    with numbers(200).map(draw, on="i").batch(8).iter_batches(epochs=2, workers=TWO) as it:
        assert len(set(ids(it))) == 400


# --- one sequence ---------------------------------------------------------------------------------------------

KILLED_AT, CUT_AT, GATE = 6, 15, 250


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def gated(gate: Path) -> Callable[[Any], Any]:
    """A function that comes no further than an element in the middle before a file is there."""

    def pass_on(i: Any) -> Any:
        while i == GATE and not gate.exists():
            time.sleep(0.02)
        return i

    return pass_on


def values(batches: Any) -> list[list[float]]:
    return [batch["i"].tolist() for batch in batches]


def test_the_sequence_is_the_same_for_any_workers_whatever_dies_and_across_a_cut(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    changing = pecan.WeightSchedule([(0, [3, 1]), (60, [1, 3])], by="elements")
    pipe = numbers(400, seed=5).map(gated(gate), on="i")
    pipe = pipe.mix(numbers(200, first=10_000, seed=5), weights=changing).map(noisy, on="i").batch(8)
    options: dict[str, Any] = {"order": "strict", "epochs": 2}
    with pipe.iter_batches(workers=TWO, **options) as it:
        got = values(islice(it, KILLED_AT))
        lose(it, maker(it))
        gate.touch()
        got += values(islice(it, CUT_AT - KILLED_AT))
        state = json.loads(json.dumps(it.state_dict()))
    with pytest.raises(StateError, match=r"order \(strict\) where this one has order \(relaxed\)"):
        pipe.iter_batches(workers=ONE, state=state, epochs=2)
    got += values(pipe.iter_batches(workers=pecan.Workers(remote=1, local=0), state=state, **options))
    assert got == values(pipe.iter_batches(debug=True, first_epoch=0, epochs=2)), "debug mode is one worker"


def uneven(i: Any) -> Any:
    if i % 8 == 0:
        time.sleep(0.005)
    return i


def not_a_fifth(i: Any) -> bool:
    return bool(i % 5 != 3)


@pytest.mark.parametrize(("order", "kept"), [(None, None), ("strict", None), (None, not_a_fifth)])
def test_rows_have_the_order_of_the_source_with_any_workers_whatever_dies_and_across_a_cut(
    tmp_path: Path, order: Literal["strict"] | None, kept: Callable[[Any], bool] | None
) -> None:
    gate = tmp_path / "gate"
    pipe = numbers(400, config=pecan.Config(threads_per_worker=4)).map(gated(gate), on="i").map(uneven, on="i")
    pipe = (pipe if kept is None else pipe.filter(kept, on="i")).batch(8)
    with pipe.iter_batches(workers=TWO, epochs=2, order=order) as it:
        got = ids(islice(it, KILLED_AT))
        lose(it, maker(it))
        gate.touch()
        got += ids(islice(it, CUT_AT - KILLED_AT))
        state = json.loads(json.dumps(it.state_dict()))
        assert ("all workers make it" if order else "order: rows come in the order of the source") in it.explain()
    got += ids(pipe.iter_batches(workers=ONE, state=state, epochs=2, order=order))
    assert got == [*filter(kept or (lambda i: True), range(400))] * 2


def held_once(folder: Path) -> Callable[[Any], Any]:
    """A function whose first call with an element in the middle waits for a file."""

    def pass_on(i: Any) -> Any:
        if i == GATE:
            with contextlib.suppress(FileExistsError):
                (folder / "first").touch(exist_ok=False)
                while not (folder / "gate").exists():
                    time.sleep(0.02)
        return i

    return pass_on


def test_rows_of_a_worker_that_is_late_are_made_by_another_one(tmp_path: Path) -> None:
    pipe = numbers(400).map(held_once(tmp_path), on="i").batch(8)
    with pipe.iter_batches(workers=TWO) as it:
        assert ids(it) == [*range(400)]
        assert any("another worker makes them too" in event.text for event in it.report().events)
    (tmp_path / "gate").touch()
