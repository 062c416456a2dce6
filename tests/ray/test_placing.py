"""AutoPlacement on a running job: real actors on three nodes, transforms that wait instead of compute.

How long something takes decides no test: deployments are compared within one worker, and reasons are read.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import pecan_ray as pecan
from pecan_ray.batches import Batches
from pecan_ray.observe.report import Report
from pecan_ray.placement import Deployment, Prices
from pecan_ray.plan.prices import GCP_TPU_V2
from pecan_ray.runtime.cluster import this_node
from pecan_ray.simulator.run_profile import profile_of_report
from pecan_ray.simulator.what_if import what_if
from tests.ray.conftest import living_actors
from tests.ray.waiting import until
from tests.ray.waiting_transforms import BATCH, SMALL, Waits, cheapest, half, settled, train, waiting

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def auto(**options: Any) -> pecan.AutoWorkers:
    settings: dict[str, Any] = {"max_local": 2, "max_remote": 6, "window_batches": 30, "window_s": 1.5}
    settings |= {"prices": GCP_TPU_V2, **options}
    return pecan.AutoWorkers(**settings)


def near(found: Deployment, best: Deployment) -> bool:
    return abs(found.local - best.local) + abs(found.remote - best.remote) <= 1


@pytest.mark.parametrize(
    ("per_element", "step", "max_local", "best"),
    [
        pytest.param(0.02, 0.023, 2, Deployment(2, 2), id="remote workers are needed", marks=pytest.mark.slow),
        pytest.param(0.01, 0.050, 2, Deployment(1, 0), id="one local worker suffices", marks=pytest.mark.slow),
        pytest.param(0.02, 0.050, 3, Deployment(2, 0), id="local workers suffice", marks=pytest.mark.slow),
    ],
)
def test_the_cheapest_deployment_is_found(per_element: float, step: float, max_local: int, best: Deployment) -> None:
    assert cheapest(per_element, step, max_local, max_remote=6) == best
    pipe = waiting(per_element)
    with pipe.iter_batches(workers=auto(max_local=max_local), **SMALL) as batches:
        train(batches, step, settled)
        explained, report = batches.explain(), batches.report()
    assert near(report.timeline[-1].decision.target, best)
    check_what_is_told(explained, report)
    (runs,) = [row for row in explained.splitlines() if row.endswith("runs")]
    assert str(report.timeline[-1].decision.target) in runs
    assert ("dearer" in explained) == (len({step.deployment for step in report.timeline if step.window.batches}) > 1)


def test_a_trainer_that_waits_gets_remote_workers_and_is_told_why() -> None:
    """How many are cheapest is decided by speed: the simulation of AutoPlacement and the long form look at that."""
    workers = auto(max_remote=1, window_batches=10, window_s=0.5)
    with waiting(0.02).iter_batches(workers=workers, **SMALL) as batches:
        train(batches, 0.0, lambda timeline: any(one.deployment.remote for one in timeline), look_every=5)
        explained, report = batches.explain(), batches.report()
    check_what_is_told(explained, report)


def check_what_is_told(explained: str, report: Report) -> None:
    """Check that each decision is told with its reason, and each deployment that has run with its cost."""
    assert all(str(step.decision.target) in step.decision.reason for step in report.timeline)
    why, _, _, *rest = explained.splitlines()
    (then,) = [place for place, line in enumerate(rest) if line.strip().startswith("next: AutoPlacement ")]
    assert "AutoPlacement looks for the cheapest deployment." in why and "per 1000 batches" in explained
    ran = {str(step.deployment) for step in report.timeline if step.window.batches}
    assert {row.strip().split("  ")[0] for row in rest[:then]} == ran
    targets = [Deployment(1, 0), *(step.decision.target for step in report.timeline)]
    told = [event.text for event in report.events if event.kind == "placement" and " -> " in event.text]
    assert len(told) == sum(new != old for old, new in itertools.pairwise(targets))
    assert all(any(step.decision.reason in text for step in report.timeline) for text in told)
    assert f"AutoPlacement: {targets[-1]} after {len(report.timeline)} windows" in str(report)
    assert report.cost is not None and report.cost.total > report.cost.wasted > 0


def test_autoorders_sample_says_with_how_many_workers_to_begin() -> None:
    """Nothing need be measured before more workers come."""
    # The look ends before the job would begin without it.
    few: dict[str, Any] = {"sample_elements": 16, "sample_seconds": 60.0}
    config = pecan.Config(reorder="safe", order_folder="", ring_bytes=1 << 20, threads_per_worker=1, **few)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100_000)), name="sampled", config=config)
    pipe = pipe.map(Waits(0.1), on="i").map(half, on="i").batch(BATCH)
    with pipe.iter_batches(workers=auto(max_remote=0), **SMALL) as batches:

        def begun() -> list[str]:
            next(batches)
            said = [event.text for event in batches.report().events if event.kind == "placement"]
            return [text for text in said if text.startswith("begin with 2 local + 0 remote: ")]

        until(lambda: bool(begun()), lambda: str(batches.report()), timeout_s=90)


@pytest.mark.slow
def test_a_node_that_never_comes_is_done_without() -> None:
    pipe = waiting(0.02, remote_labels={"zone": "moon"}, placement_warning_s=0.5)
    with pipe.iter_batches(workers=auto(max_local=1, patience_s=5.0), **SMALL) as batches:
        train(batches, 0.023, settled)
        report = batches.report()
    assert report.timeline[-1].decision.target == Deployment(1, 0)
    assert any("zone=moon" in event.text for event in report.events)
    assert all(worker.placement == "local" == worker["placement"] for worker in report.workers.values())


@pytest.mark.slow
def test_scale_puts_an_end_to_the_search() -> None:
    with waiting(0.02, 1200).iter_batches(workers=auto(), **SMALL) as batches:
        seen = train(batches, 0.001, lambda timeline: len(timeline) > 0)
        batches.scale(local=1, remote=1)
        decided = len(batches.report().timeline)
        until(lambda: "1 local + 1 remote run, as scale() wants" in batches.explain(), batches.explain, 60)
        seen += train(batches, 0.001)
        report = batches.report()
    assert seen == Counter(range(1200))
    assert len(report.timeline) == decided
    assert "the numbers of workers were fixed by scale()" in str(report)
    wanted = [event.text for event in report.events if event.kind == "scale"]
    assert wanted[-1] == "1 local and 1 remote workers wanted"


@ray.remote(num_cpus=4)
class Occupant:
    """Holds the CPUs of a node."""

    def node(self) -> str:
        return this_node()


def test_a_crowded_host_begins_with_a_remote_worker() -> None:
    here = NodeAffinitySchedulingStrategy(this_node(), soft=False)
    actor: Any = Occupant
    occupant = actor.options(scheduling_strategy=here).remote()
    assert ray.get(occupant.node.remote()) == this_node()
    with waiting(0.005, 400, placement_warning_s=0.5).iter_batches(workers=auto(max_remote=1), **SMALL) as batches:
        assert train(batches, 0.0) == Counter(range(400))
        report = batches.report()
    assert any("ask for a remote one as well" in event.text for event in report.events)
    ray.kill(occupant)


class Word:
    """What one process has to say to others."""

    def __init__(self) -> None:
        self._given = False

    def give(self) -> None:
        self._given = True

    def given(self) -> bool:
        return self._given


remote: Any = ray.remote
word_actor: Any = remote(num_cpus=0)(Word)


@ray.remote(num_cpus=0)
def share(rank: int, job: str, workers: Any, enough: Any) -> int:
    """Train as one of two ranks until it is enough; return how many batches that took."""
    with waiting(0.002).iter_batches(rank=rank, world_size=2, workers=workers, job=job, epochs=None) as batches:
        for number, _ in enumerate(batches, 1):
            if rank == 0 and number % 20 == 0 and ray.get(enough.given.remote()):
                return number
    return 0


@pytest.mark.slow
def test_hosts_get_local_workers_by_their_cpus(three_nodes: Any) -> None:
    """Two trainers, one of them on a node with twice the CPUs."""
    large = three_nodes.add_node(num_cpus=8, object_store_memory=200 << 20)
    three_nodes.wait_for_nodes()
    nodes, enough = [this_node(), large.node_id], word_actor.remote()
    trainers = [
        share.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            rank, "unequal", pecan.Workers(local=3), enough
        )
        for rank, node in enumerate(nodes)
    ]

    def placed() -> list[str]:
        names = [name for name in living_actors() if name.startswith("pecan:unequal:local-")]
        return [ray.get(ray.get_actor(name, namespace="pecan").placed.remote())[0] for name in names]

    until(lambda: len(placed()) == 3, "not three local workers")
    assert Counter(placed()) == {nodes[0]: 1, nodes[1]: 2}
    ray.get(enough.give.remote())
    assert ray.get(trainers[0]) > 0
    with pytest.raises(ray.exceptions.RayTaskError, match="rank 0 has left"):
        ray.get(trainers[1])
    three_nodes.remove_node(large)


def test_a_trainer_s_node_may_have_too_few_cpus_for_a_worker() -> None:
    """As a head node that has none for Ray."""
    config = pecan.Config(cpus_per_worker=64.0, threads_per_worker=1, reorder="off")
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(50)), name="cramped", config=config).batch(4)
    with pipe.iter_batches(workers=pecan.AutoWorkers(max_remote=0)) as batches:
        assert sum(len(batch["i"]) for batch in batches) == 50
        told = [event.text for event in batches.report().events if event.kind == "placement"]
    assert any("a worker takes 64 (Config(cpus_per_worker=...))" in text for text in told), told


# --- what is wanted, and what changes ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trainer_that_slows_down_tenfold_gives_its_remote_workers_back_within_30_s() -> None:
    """With the windows that users have: from the first slow step to the decision, by the job's clock."""
    workers = auto(max_remote=3, window_batches=None, window_s=5.0)
    with waiting(0.02).iter_batches(workers=workers, **SMALL) as batches:
        train(batches, 0.023, settled)
        before = batches.report()
        assert before.timeline[-1].decision.target.remote >= 1
        train(batches, 0.23, lambda timeline: timeline[-1].decision.target.remote == 0, look_every=5)
        after = batches.report()
    given_back = next(
        step.seconds for step in after.timeline[len(before.timeline) :] if step.decision.target.remote == 0
    )
    assert given_back - before.seconds <= 30, [str(step.decision) for step in after.timeline[len(before.timeline) :]]


class Ranks:
    """Two trainers that step together, each in a thread: a step begins when both have their batch."""

    def __init__(self, step_s: float, workers: pecan.AutoWorkers) -> None:
        self._step_s, self._barrier, self._over = step_s, threading.Barrier(2), threading.Event()
        self.batches: dict[int, Batches] = {}
        self._threads = [threading.Thread(target=self._train, args=(rank, workers)) for rank in range(2)]
        for thread in self._threads:
            thread.start()

    def _train(self, rank: int, workers: pecan.AutoWorkers) -> None:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "in-step", "epochs": None, **SMALL}
        self.batches[rank] = waiting(0.01).iter_batches(workers=workers, **options)
        for _ in self.batches[rank]:
            over = self._over.is_set()
            self._barrier.wait(60)
            time.sleep(self._step_s)
            if over or self._barrier.broken:
                return

    def end(self) -> None:
        """Let both take their last step, and leave."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        for batches in self.batches.values():
            batches.close()


@pytest.mark.slow
def test_two_trainers_in_step_get_the_workers_that_they_need_together() -> None:
    """A worker has a batch in 40 ms, and the two trainers take one each in 25 ms: they need four."""
    ranks = Ranks(0.025, auto(max_local=2, max_remote=6))
    try:
        until(lambda: len(ranks.batches) == 2, "the trainers have not come", 60)
        until(lambda: settled(ranks.batches[0].report().timeline), lambda: str(ranks.batches[0].report()), 240)
        report = ranks.batches[0].report()
    finally:
        ranks.end()
    assert near(report.timeline[-1].decision.target, Deployment(2, 2))
    assert report.trainers == 2
    first = next(step.window for step in report.timeline if not step.window.defect())
    assert first.wait_time is not None
    assert 0.5 < first.wait_time / first.batch_time < 0.85, "beside one worker they wait for 55 of 80 ms"


@pytest.mark.slow
def test_a_job_with_a_deadline_takes_the_workers_that_it_needs_for_it() -> None:
    """1500 batches in 50 s are 33 ms for each: the two local workers, which are cheapest, bring one in 40 ms."""
    workers = auto(prices=Prices(0.1, 10.0), objective=pecan.Deadline(50))
    with waiting(0.02, 4 * 1500).iter_batches(workers=workers, **SMALL) as batches:
        assert train(batches, 0.005) == Counter(range(4 * 1500))
        report = batches.report()
        explained = batches.explain()
    assert "the cheapest deployment that ends in time" in explained
    assert max(deployment.remote for _, deployment in report.deployments) >= 1
    assert report.seconds <= 53, str(
        report
    )  # a busy machine may hold up the last batches, for which none comes in time


@pytest.mark.slow
def test_a_forecast_for_other_workers_holds_in_a_second_run() -> None:
    """A worker has a batch in 80 ms, two of them one in 40: four would bring one in 20."""
    paces = {}
    for workers in (pecan.Workers(1, 1), pecan.Workers(2, 2)):
        with waiting(0.02).iter_batches(workers=workers, **SMALL) as batches:

            def measured(ran: Deployment, batches: Batches = batches) -> bool:
                for _ in range(10):
                    next(batches)
                return sum(one.deployment == ran for one in batches.report().windows) >= 2

            ran = Deployment(workers.local, workers.remote)
            until(functools.partial(measured, ran), "nothing was measured", 90)
            paces[ran] = profile_of_report(json.loads(batches.report().to_json()))
    (here, first), (there, second) = paces.items()
    told = what_if(first, there)
    (truth,) = [pace for pace in second.measured if pace.deployment == there]
    assert 0.9 * told.low_s <= truth.batch_s <= 1.1 * told.high_s, (told, truth)
    assert told.batch_s < 0.75 * told.now_s and here in {pace.deployment for pace in first.measured}
