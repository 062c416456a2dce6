"""What the controller and the readers do in event loops: listing, bids, notices, reasons, messages, failing tasks."""

from __future__ import annotations

import asyncio
import pickle
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ActorUnschedulableError

import pecan_ray as pecan
from pecan_ray.errors import ClusterError, SourceError
from pecan_ray.job.events import Event, JobFailed, ListingEnded, PoolRequestsReceived, SplitPageReceived, WorkerLost
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import LeftOutElement, TrainerUpdate
from pecan_ray.job.notification_schedule import MANY_TRAINERS
from pecan_ray.job.spec import JobSpec
from pecan_ray.options import Config, IterOptions, Workers
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Split
from pecan_ray.runtime import pool_request_exchange, worker_actors
from pecan_ray.runtime.cluster import SharedNodes
from pecan_ray.runtime.job_tasks import JobTasks, unexpected_failure
from pecan_ray.runtime.listing import PAGE, list_sources
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.pool_request_exchange import PoolRequestExchange
from pecan_ray.runtime.update_calls import UpdateCalls
from pecan_ray.runtime.worker_actors import WorkerActor, WorkerActors
from tests.unit.engines.engine_leases import OwnSource

pytestmark = pytest.mark.usefixtures("each_event_loop")


def test_a_round_in_which_ray_does_not_answer_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def nodes_for(nodes: tuple[str, ...], labels: dict[str, str]) -> SharedNodes:
        asked.append(nodes)
        if len(asked) < 3:
            raise ray.exceptions.RayError("the control store does not answer")
        return SharedNodes({"local": nodes, "remote": ()}, {"a": 4.0})

    monkeypatch.setattr(pool_request_exchange, "nodes_for", nodes_for)
    monkeypatch.setattr(pool_request_exchange, "other_jobs", lambda job: {})
    monkeypatch.setattr(pool_request_exchange, "ROUND_S", 0.0)

    async def run() -> PoolRequestsReceived:
        heard: asyncio.Future[PoolRequestsReceived] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(PoolRequestExchange("job", heard.set_result).run(("a",), {}))
        try:
            return await asyncio.wait_for(heard, 60)
        finally:
            task.cancel()

    assert asyncio.run(run()).cpus == (("a", 4.0),) and len(asked) >= 3


WORKERS = 50
REMOTE, LOCAL = {"pecan-role": "remote"}, {"ray.io/node-id": "a"}


def job_of(name: str, config: Config) -> Job:
    shape = plan_shape(pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(8))).batch(2).plan)
    return Job(JobSpec(name, LedgerShape(), Workers(1)), b"", b"", shape, "python", 0, IterOptions(), config)


def must_not_fail(doing: str, error: Exception) -> None:
    raise AssertionError(doing) from error


def actors_of(job: Job, happened: Callable[[Any], None] = lambda event: None) -> WorkerActors:
    return WorkerActors(job, b"", None, None, happened, lambda worker: None, must_not_fail)


def test_the_cluster_is_asked_once_for_all_workers_that_wait_and_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Mapping[str, str], float, str]] = []

    def why_no_placement(selector: Mapping[str, str], cpus: float, job: str) -> str:
        asked.append((selector, cpus, job))
        return f"answer {len(asked)}"

    async def ask(*selectors: Mapping[str, str]) -> list[set[str]]:
        """Let many workers at a time ask why they have no place, once for each selector; return their answers."""
        actors = actors_of(job_of("full", Config(cpus_per_worker=2.0)))
        return [set(await asyncio.gather(*(actors._reason(one) for _ in range(WORKERS)))) for one in selectors]

    monkeypatch.setattr(worker_actors, "why_no_placement", why_no_placement)
    monkeypatch.setattr(worker_actors, "REASON_S", 1000.0)
    assert asyncio.run(ask(REMOTE, LOCAL, REMOTE)) == [{"answer 1"}, {"answer 2"}, {"answer 1"}]
    assert asked == [(REMOTE, 2.0, "full"), (LOCAL, 2.0, "full")]
    monkeypatch.setattr(worker_actors, "REASON_S", -1.0)
    assert len(asyncio.run(ask(REMOTE))[0]) == WORKERS == len(asked) - 2


def test_a_worker_whose_node_was_lost_before_it_was_made_is_no_crash_of_its_process() -> None:
    happened: list[object] = []

    async def life() -> None:
        raise ActorUnschedulableError("the node is dead")

    async def follow() -> None:
        actors = actors_of(job_of("lost", Config()), happened.append)
        await actors._wait_for_end(WorkerActor("remote-0"), life())

    asyncio.run(follow())
    [lost] = happened
    assert isinstance(lost, WorkerLost) and (lost.worker, lost.cause) == ("remote-0", "node")


RANKS = MANY_TRAINERS + 20
"""So many that what can wait is told a little later."""


def board_of(orders: Callable[[int], TrainerUpdate]) -> UpdateCalls:
    return UpdateCalls(orders, JobTasks(must_not_fail))


def test_ranks_that_listen_are_answered_once_they_are_told_but_for_one_that_has_heard_with_its_report() -> None:
    async def run() -> None:
        orders = TrainerUpdate(number=1)
        board = board_of(lambda rank: orders)
        calls = [asyncio.ensure_future(board.listen(rank, 1)) for rank in range(RANKS)]
        await asyncio.sleep(0)
        orders = replace(orders, number=2)
        board.tell((0,), only_limit_raised=True)
        board.tell((1, 2))
        board.pickled_update(1)
        for rank in (2, 0):
            assert pickle.loads(await calls[rank])[0].number == 2
        assert [rank for rank, call in enumerate(calls) if call.done()] == [0, 2]
        for call in calls:
            call.cancel()

    asyncio.run(run())


BAD = LeftOutElement("split 0, element 3", "decode", "a.png", "not an image")


@pytest.mark.parametrize(
    "own",
    [{"quarantine": (BAD,), "quarantined": 2}, {"settle": ("local-1",)}, {"keep": 3}, {"new_workers": ("local-1",)}],
)
def test_each_rank_is_told_its_own_whoever_asks_first_and_the_same_is_pickled_once(own: dict[str, Any]) -> None:
    orders = [replace(TrainerUpdate(number=2), **own), TrainerUpdate(number=2)]
    for first in range(2):
        board = board_of(lambda rank: orders[rank])
        for rank in (first, 1 - first, first):
            assert pickle.loads(board.pickled_update(rank))[0] == orders[rank]
    board = board_of(lambda rank: orders[0])
    assert board.pickled_update(0) is board.pickled_update(1)


def test_a_task_and_a_callback_that_fail_are_told_of_and_others_go_on_until_they_are_cancelled() -> None:
    told: list[tuple[str, Exception]] = []

    class Broken(UpdateCalls):
        def _send_due(self) -> None:
            raise RuntimeError("no rank")

    async def broken() -> None:
        raise KeyError("node")

    async def work() -> None:
        tasks, done = JobTasks(lambda doing, error: told.append((doing, error))), asyncio.Event()

        async def sound() -> None:
            done.set()

        waiting = tasks.begin("waiting", asyncio.Event().wait)
        await asyncio.gather(tasks.begin("looking for room", broken), tasks.begin("letting time pass", sound))
        assert done.is_set()
        board = Broken(lambda rank: TrainerUpdate(number=2), tasks)
        board.tell((0,))
        before = asyncio.get_running_loop().time()
        while board._handle is not None:
            assert asyncio.get_running_loop().time() < before + 60
            await asyncio.sleep(0.001)
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(work())
    assert [doing for doing, _ in told] == ["looking for room", "answering trainers that wait for orders"]
    assert isinstance(told[0][1], KeyError)


def test_an_error_that_nobody_has_foreseen_says_what_was_being_done_and_one_of_ours_is_told_as_it_is() -> None:
    error = unexpected_failure("job-1", "handling SplitPageReceived", KeyError("x"))
    assert isinstance(error, ClusterError)
    assert str(error).startswith("job job-1: its controller has failed while handling SplitPageReceived: KeyError: 'x'")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    ours = SourceError("split 7 is missing")
    assert unexpected_failure("job-1", "handling SplitPageReceived", ours) is ours


WAIT_S = 60.0


class Files(OwnSource):
    """A source of names, numbered from `first` on; it fails after so many."""

    def __init__(self, count: int, fails: bool = False, first: int = 0) -> None:
        self.count, self.fails, self.first, self.listed = count, fails, first, 0

    def splits(self) -> Iterator[Split]:
        for index in range(self.count):
            self.listed += 1
            yield Split(self.first + index, f"file-{index}")
        if self.fails:
            raise OSError("the bucket is gone")


class Handled:
    """Takes events, and says when each was handled."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[Event, Future[None]]] = queue.Queue()

    def __call__(self, event: Event) -> Future[None]:
        done: Future[None] = Future()
        self.events.put((event, done))
        return done


def test_the_next_page_waits_until_the_one_before_was_handled() -> None:
    source, handled = Files(1 + 2 * PAGE), Handled()
    list_sources([source], (), handled)
    sizes = []
    while True:
        event, done = handled.events.get(timeout=WAIT_S)
        if isinstance(event, ListingEnded):
            break
        assert isinstance(event, SplitPageReceived) and handled.events.empty()
        sizes.append(len(event.splits))
        assert source.listed == sum(sizes), "nothing is listed ahead"
        done.set_result(None)
    assert sizes == [1, PAGE, PAGE]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Files(0, fails=True), "listing Files failed: OSError: the bucket is gone"),
        (Files(1, first=1), "Files.splits() has numbered split 1 (file-0) where split 0 was due"),
    ],
)
def test_a_source_that_fails_or_numbers_its_splits_wrongly_ends_the_job_with_its_name(source: Files, said: str) -> None:
    handled = Handled()
    list_sources([source], (), handled)
    event, _ = handled.events.get(timeout=WAIT_S)
    assert isinstance(event, JobFailed) and isinstance(event.error, SourceError)
    assert said in str(event.error)
