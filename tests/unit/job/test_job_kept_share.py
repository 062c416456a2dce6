"""What a job knows of its workers is of the work that they did: a cache that is full makes it other work."""

from __future__ import annotations

import pytest

from pecan_ray.job.kept_share import KeptShare, is_other_work
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.placing import Placing, begin
from pecan_ray.job.room import Room
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import AutoWorkers
from pecan_ray.plan.windows import Deployment

STEP_S = 0.05
"""Of the trainer itself."""


def test_the_share_is_that_of_what_came_since_the_last_answer() -> None:
    share = KeptShare()
    assert share.lately([]) is None
    assert share.lately([WorkerProgress(elements=10)]) is None, "there is no cache"
    assert share.lately([WorkerProgress(computed=30), WorkerProgress(computed=10)]) == 0
    assert share.lately([WorkerProgress(computed=30), WorkerProgress(computed=10)]) is None, "nothing came"
    assert share.lately([WorkerProgress(kept=30, computed=40), WorkerProgress(computed=10)]) == 0.75
    assert share.lately([WorkerProgress(kept=90, computed=40), WorkerProgress(computed=10)]) == 1


@pytest.mark.parametrize(
    ("before", "now", "other"),
    [(None, 1.0, False), (0.0, None, False), (0.0, 0.4, False), (0.0, 0.6, True), (1.0, 0.2, True)],
)
def test_only_a_large_change_is_other_work(before: float | None, now: float | None, other: bool) -> None:
    assert is_other_work(before, now) is other


class FilledCache:
    """A job whose workers need `computing_s` for a batch in its first epoch, and `reading_s` out of the cache later."""

    def __init__(self, computing_s: float, reading_s: float, told: bool) -> None:
        options = AutoWorkers(max_local=2, max_remote=4, window_batches=40)
        self.placing: Placing = begin(options, Room((4.0,), (8.0,)), 1.0, "exactly_once", 1)
        self._seconds, self._told = {False: computing_s, True: reading_s}, told
        self._totals, self.at = StepTotals(), Deployment(1, 0)
        self.placing.report(0, self._totals)

    def window(self, full: bool) -> str:
        """Go on for a window; return what was decided, in words."""
        batch_s = max(STEP_S, self._seconds[full] / self.at.workers)
        waits = batch_s > STEP_S
        for _ in range(40):
            self._totals = self._totals.step(batch_s, batch_s - STEP_S, 0 if waits else 6)
        self.placing.report(0, self._totals)
        share = float(full) if self._told else None
        step = self.placing.decide(self.at, self._totals.seconds, kept=lambda: share)
        assert step is not None
        self.at = step.decision.target
        return step.decision.reason


def test_a_worker_that_is_not_needed_beside_a_full_cache_goes() -> None:
    job = FilledCache(computing_s=0.09, reading_s=0.01, told=True)
    for _ in range(12):
        job.window(full=False)
    assert job.at == Deployment(2, 0)
    said = job.window(full=True)
    assert said.startswith("a cache gives 100% of the elements, where it gave 0%: a new search begins; ")
    for _ in range(8):
        job.window(full=True)
    assert job.at == Deployment(1, 0)
    assert job.placing.policy.converged


def test_without_knowing_of_the_cache_it_stays_with_what_it_has_measured() -> None:
    job = FilledCache(computing_s=0.09, reading_s=0.01, told=False)
    for window in range(30):
        job.window(full=window >= 12)
    assert job.at == Deployment(2, 0)


def test_a_cache_that_has_lost_its_entries_brings_workers_back() -> None:
    job = FilledCache(computing_s=0.09, reading_s=0.01, told=True)
    for _ in range(8):
        job.window(full=True)
    assert job.at == Deployment(1, 0)
    for _ in range(8):
        job.window(full=False)
    assert job.at == Deployment(2, 0)
