"""Three live jobs on two nodes that hold fewer workers than the jobs want: workers go where they save most."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pecan_ray.batches import Batches
from pecan_ray.options import AutoWorkers
from pecan_ray.placement import Prices
from pecan_ray.plan.windows import Deployment
from tests.ray.waiting import until
from tests.ray.waiting_transforms import SMALL, train, waiting

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

STEP_S = 0.05
ELEMENT_S = 0.055
"""A batch takes a worker 0.22 s: each trainer could use four or five workers, and is not to have less than two."""
PLACES = 8


class TrainingJob:
    """A trainer in a thread of its own."""

    def __init__(self, name: str, host: float) -> None:
        workers = AutoWorkers(max_local=0, prices=Prices(host, 0.1), window_batches=10, window_s=1.0)
        self.batches: Batches = waiting(ELEMENT_S).iter_batches(epochs=None, workers=workers, job=name, **SMALL)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._train, name=name)
        self._thread.start()

    def _train(self) -> None:
        train(self.batches, STEP_S, lambda _: self._over.is_set(), look_every=5)

    @property
    def running(self) -> Deployment:
        """What runs now."""
        deployments = self.batches.report().deployments
        return deployments[-1][1] if deployments else Deployment(0, 0)

    def end(self) -> None:
        """Stop, and give the workers back."""
        self._over.set()
        self._thread.join()
        self.batches.close()


@contextmanager
def training(name: str, host: float) -> Iterator[TrainingJob]:
    job = TrainingJob(name, host)
    try:
        yield job
    finally:
        job.end()


def told(*jobs: TrainingJob) -> str:
    events: list[Any] = [(job.running, job.batches.report().events[-12:]) for job in jobs]
    return "\n".join(map(str, events))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_go_where_they_save_most_and_come_back() -> None:
    """Two cheap jobs have taken all places before one comes whose host is forty times as dear; then it ends."""
    with training("cheap-a", 1.0) as first, training("cheap-b", 1.0) as second:
        until(lambda: first.running.remote + second.running.remote >= PLACES - 1, "places were left")
        with training("dear", 40.0) as dear:

            def shared() -> bool:
                cheap = first.running.remote, second.running.remote
                return dear.running.remote >= 4 and min(cheap) >= 1 and max(cheap) < dear.running.remote

            until(shared, lambda: f"the dear job has too few, or all:\n{told(dear, first, second)}")
            assert any(event.kind == "sharing" for job in (first, second) for event in job.batches.report().events)
        until(lambda: first.running.remote + second.running.remote >= PLACES - 2, "nothing came back")
