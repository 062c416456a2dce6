"""The runtime on a real cluster of three nodes: exactly once whatever dies, scaling, ranks, orders."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import pecan_ray as pecan
from pecan_ray.errors import StateError
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.runtime import session
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers, times
from tests.ray.seeds_at_import import draw
from tests.ray.waiting import until
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


def test_scaling_in_and_out_while_it_runs_keeps_every_element() -> None:
    seen: Counter[int] = Counter()
    with numbers(1500).map(slow, on="i").batch(5).iter_batches(workers=TWO) as it:
        for step, batch in enumerate(it):
            seen.update(ids([batch]))
            if step == 10:
                it.scale(local=1, remote=0)
            if step == 60:
                until(lambda: not [n for n in living_actors() if ":remote-" in n], "the remote worker still runs")
                it.scale(local=0, remote=2)
    assert seen == times(1500)


def test_a_worker_without_a_place_is_named_and_waited_for_and_workers_leave_the_controller_its_time() -> None:
    config = pecan.Config(remote_labels={"zone": "moon"}, placement_warning_s=0.5)
    with numbers(ROWS, config=config).batch(8).iter_batches(workers=TWO, **ONE_BY_ONE) as it:
        next(it)
        until(lambda: any("zone=moon" in e.text for e in it.report().events), "no word about the missing label")
        next(it)
        (steers,) = (name for name in living_actors() if name.endswith(":controller"))
        assert niceness(living_worker("local", but=[])) > niceness(steers), "it answers in time, whatever workers do"
    with pytest.raises(StopIteration):
        next(it)


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
    assert kept_behind_a_job() == kept
    monkeypatch.setattr(session, "first_worker", wrong)
    assert kept_behind_a_job() == kept


# --- one sequence ---------------------------------------------------------------------------------------------

KILLED_AT, CUT_AT, GATE = 6, 15, 250


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def gated(folder: Path, *, once: bool = False) -> Callable[[Any], Any]:
    """A function that comes no further than an element in the middle before a file is there; `once`: its first call."""

    def pass_on(i: Any) -> Any:
        if i == GATE and not (once and (folder / "first").exists()):
            (folder / "first").touch()
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


def fail_at_7_of_50(i: Any) -> Any:
    if i % 50 == 7:
        raise ValueError("a seven")
    return i


def test_rows_behind_a_filter_have_the_order_of_the_source_with_any_workers_whatever_dies_and_across_a_cut(
    tmp_path: Path,
) -> None:
    pipe = numbers(400, config=pecan.Config(threads_per_worker=4, error_budget=0.1)).map(gated(tmp_path), on="i")
    pipe = pipe.filter(lambda i: i % 5 != 3, on="i").map(fail_at_7_of_50, on="i").batch(8)
    options: dict[str, Any] = {"epochs": 2, "on_error": "skip"}
    with pipe.iter_batches(workers=TWO, **options) as it:
        got = ids(islice(it, KILLED_AT))
        lose(it, maker(it))
        (tmp_path / "gate").touch()
        got += ids(islice(it, CUT_AT - KILLED_AT))
        state = json.loads(json.dumps(it.state_dict()))
        assert "order: rows come in the order of the source" in it.explain()
    last = pipe.iter_batches(workers=ONE, state=state, **options)
    got += ids(last)
    assert got == [i for i in range(400) if i % 5 != 3 and i % 50 != 7] * 2
    assert last.report().bad_elements == 13, "of which three were counted before"


def test_ranks_get_the_batches_of_one_sequence_in_turn_whatever_dies_and_across_a_cut(tmp_path: Path) -> None:
    """The last round lacks a batch, so its rows are shared evenly."""

    def pipe() -> pecan.PecanPipeline:
        return numbers(405).map(gated(tmp_path), on="i").batch(8)

    def train(rank: int) -> tuple[list[list[float]], Any]:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "in-turn", **ONE_BY_ONE}
        with pipe().iter_batches(workers=pecan.Workers(local=2, remote=1), **options) as it:
            got = values(islice(it, KILLED_AT))
            if rank == 0:
                lose(it, maker(it))
                (tmp_path / "gate").touch()
            got += values(islice(it, CUT_AT - KILLED_AT))
            state = json.loads(json.dumps(it.state_dict()))
            assert "rank r of 2 gets batches r, r + 2" in it.explain()
            return got + values(it), state

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(train, range(2)))
    whole = [[*range(first, first + 8)] for first in range(0, 400, 8)]
    assert ranks[0][0] == [*whole[::2], [400, 401]] and ranks[1][0] == [*whole[1::2], [402, 403, 404]]
    alone = values(pipe().iter_batches(workers=ONE, state=ranks[0][1]))
    assert alone == [*whole[2 * CUT_AT :], [*range(400, 405)]] and ranks[0][1] == ranks[1][1]


def with_node(element: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.004)  # the work: a run of rows that cost nothing is all of them
    return {"i": element["i"], "node": ray.get_runtime_context().get_node_id()}


def test_ranks_on_two_nodes_get_their_batches_from_workers_on_their_own_nodes(tmp_path: Path) -> None:
    """Not each: a worker makes another node's batch where that node's own worker is late."""
    started, per_rank, rows = tmp_path / "started", 40, 8
    started.mkdir()
    pipe = numbers(10_000, config=pecan.Config(threads_per_worker=1, reorder="off"))
    pipe = pipe.map(Together(started, 2), on="i").map(with_node).batch(rows)

    def train(rank: int) -> list[tuple[float, bool]]:
        mine = ray.get_runtime_context().get_node_id()
        with pipe.iter_batches(workers=pecan.Workers(local=2), rank=rank, world_size=4, job="own-nodes") as it:
            batches = list(islice(it, per_rank))
        return [(float(batch["i"][0]), set(batch["node"]) == {mine}) for batch in batches]

    def train_two(first: int) -> list[list[tuple[float, bool]]]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(train, (first, first + 1)))

    nodes: Any = ray.nodes
    remote: Any = ray.remote
    here = ray.get_runtime_context().get_node_id()
    other = next(node["NodeID"] for node in nodes() if node["NodeID"] != here)
    placed = remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(other, soft=False))
    others = placed(train_two).remote(2)
    found = [*train_two(0), *ray.get(others)]
    firsts = [[first for first, _ in rank] for rank in found]
    assert firsts == [[rows * (rank + 4 * turn) for turn in range(per_rank)] for rank in range(4)]
    own = sum(is_own for rank in found for _, is_own in rank)
    assert own > 0.75 * 4 * per_rank, "without the rule it is half of them"


def test_rows_of_a_worker_that_is_late_are_made_by_another_one(tmp_path: Path) -> None:
    pipe = numbers(400).map(gated(tmp_path, once=True), on="i").batch(8)
    with pipe.iter_batches(workers=TWO) as it:
        assert ids(it) == [*range(400)]
        assert any("another worker makes them too" in event.text for event in it.report().events)
    (tmp_path / "gate").touch()


# --- two sources ----------------------------------------------------------------------------------------------

UNLABELLED, LABELLED = 400, 30


def labelled_again(epoch: int, seed: int) -> Any:
    return np.random.default_rng((seed, epoch)).integers(0, LABELLED, UNLABELLED)


def fixmatch(made: str) -> pecan.PecanPipeline:
    """Unlabelled images beside labelled ones, which come again and again; `made`: a file that lists what is made."""

    def weak_and_strong(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        with open(made, "a") as file:
            file.write(f"{element['u']}\n")
        return {"u": element["u"], "weak": rng.integers(1000), "strong": rng.integers(1000)}

    def weak(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"label": element["label"], "image": rng.integers(1000)}

    labelled = pecan.PecanPipeline(pecan.sources.Arrays(label=np.arange(LABELLED)), sampler=labelled_again).map(weak)
    source = pecan.sources.Arrays(u=np.arange(UNLABELLED), split_rows=30)
    unlabelled = pecan.PecanPipeline(source, shuffle=True, name="fixmatch", seed=5).map(weak_and_strong)
    return unlabelled.zip(labelled).batch(4)


def rows_of(batches: Any) -> list[tuple[int, ...]]:
    return [row for batch in batches for row in zip(*(batch[name].tolist() for name in sorted(batch)), strict=True)]


def test_workers_share_a_zip_in_order_and_two_ranks_go_on_from_a_state_where_it_was_taken(tmp_path: Path) -> None:
    made = str(tmp_path / "made")
    whole = rows_of(fixmatch(made).iter_batches(debug=True))
    first, workers = [], set()
    options: dict[str, Any] = {"workers": TWO, **ONE_BY_ONE}
    with fixmatch(made).iter_batches(**options) as batches:
        for batch in batches:
            assert batches.provenance is not None
            workers.add(batches.provenance.worker)
            first.append(batch)
            if len(first) == 10:
                lose(batches, batches.provenance.worker)
            if len(first) == 60:
                assert "rows come in the order of the source" in batches.explain()
                state = batches.state_dict()
                break
    assert len(workers) > 1 and rows_of(first) == whole[:240]
    os.remove(made)

    def rest(rank: int) -> list[list[tuple[int, ...]]]:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "zip-ranks", "workers": pecan.Workers(local=2)}
        with fixmatch(made).iter_batches(state=state, **options) as batches:
            assert "rank r of 2 gets batches r, r + 2" in batches.explain()
            return [rows_of([batch]) for batch in batches]

    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(rest, range(2))
    assert [row for turn in zip(ours, theirs, strict=True) for batch in turn for row in batch] == whole[240:]
    columns = sorted(("u", "weak", "strong", "label", "image"))
    used = {row[columns.index("u")] for row in whole[:240]}
    with open(made) as file:
        assert not used & set(map(int, file)), "nothing that was used is made again"
