"""Which losses of workers in a row end a job, and which are waited out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pecan_ray.job import events
from pecan_ray.job.fatal_elements import STORAGE_ANSWERS_S, hung
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.losses import MAX_PAUSE_S, MOST_IN_A_ROW, Loss, Losses
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.spec import Timeouts
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.plan.splits import AtWork
from pecan_ray.storage import s3
from tests.unit.job.job_rig import JobRig, of_kind

TIMES = 3 * MOST_IN_A_ROW


class LosingJob:
    """A job of one worker at a time, which no trainer has received a batch from when it is lost."""

    def __init__(self) -> None:
        self.rig = JobRig(timeouts=Timeouts(worker_s=5.0))
        self.rig.list_splits(1)
        (self.worker,) = self.rig.come()
        self.rig.place(self.worker)
        self.pauses: list[float] = []
        """Seconds from the loss of each worker until another one was started."""

    @property
    def over(self) -> bool:
        return self.rig.job.error is not None

    def lose(self, event: events.Event | None = None, *, broken: bool = False) -> None:
        """Let the worker be lost: with an event, with its stream, or because it says nothing more."""
        worker, lost_at = self.worker, self.rig.now
        if broken:
            self._follow(self.rig.report(broken=(worker,)))
        if event is not None:
            self._follow(self.rig.handle(event))
        for _ in range(600):
            if worker in self.rig.job.worker_table.workers:
                lost_at = self.rig.now
            if self.worker != worker or self.over:
                break
            done = self.rig.handle(events.TrainerWaiting(0, "t0"), after=0.5)
            self._follow([*done, *self.rig.handle(events.TimePassed(), after=0.5)])
        assert self.worker != worker or self.over
        self.pauses.append(self.rig.now - lost_at)

    def _follow(self, done: list[Instruction]) -> None:
        for start in of_kind(StartWorker, done):
            self.worker = start.worker
            self.rig.place(self.worker)

    def lose_silent(self, in_line_share: float | None) -> None:
        """Let the worker be lost that says nothing more; None: it has said nothing at all."""
        if in_line_share is not None:
            told = WorkerProgress(in_line_share=in_line_share)
            self.rig.handle(events.WorkerProgressReported(self.worker, told))
        self.lose()

    def lose_one(self, how: str) -> None:
        """Let the worker be lost in one of several ways."""
        died = events.WorkerLost(self.worker, "process", "signal 11")
        if how == "dies":
            self.lose(died)
        elif how == "stream breaks, and it has died":
            self.lose(died, broken=True)
        elif how == "stream breaks":
            self.lose(broken=True)
        elif how == "stream breaks, and its node is gone":
            self.lose(events.WorkerLost(self.worker, "node", "its node is gone"), broken=True)
        elif how == "cannot be reached":
            self.lose(events.WorkerLost(self.worker, "stream", "Ray cannot reach it"))
        else:
            self.lose_silent({"silent": 0.1, "silent and starved": 0.9, "silent from its start": None}[how])


@pytest.mark.parametrize("how", ["dies", "stream breaks, and it has died", "silent"])
def test_losses_in_a_row_end_a_job_if_the_workers_own_work_may_be_the_cause(how: str) -> None:
    job = LosingJob()
    while not job.over:
        job.lose_one(how)
    assert len(job.pauses) == MOST_IN_A_ROW + 1 and max(job.pauses) < MAX_PAUSE_S
    assert str(job.rig.job.error).startswith("job job: 6 workers in a row were lost before a trainer received a batch")


def test_workers_of_a_node_that_are_asked_to_end_together_count_once() -> None:
    losses = Losses()
    for number in range(TIMES):
        assert losses.note_sigterm(f"w{number}", "node", 0.0, 10.0) == ""
    told = [losses.note_sigterm(f"v{number}", f"n{number}", 0.0, 10.0) for number in range(MOST_IN_A_ROW)]
    assert not any(told[:-1]) and told[-1].startswith("6 workers in a row were lost")


@pytest.mark.parametrize("how", ["stream breaks", "stream breaks, and its node is gone"])
def test_losses_by_what_is_around_the_workers_end_no_job_however_many_they_are(how: str) -> None:
    job = LosingJob()
    for _ in range(TIMES):
        job.lose_one(how)
    assert job.rig.job.error is None


@pytest.mark.parametrize("how", ["cannot be reached", "silent and starved", "silent from its start"])
def test_a_job_that_goes_on_says_so_and_starts_workers_at_longer_and_longer_intervals_until_a_batch_comes(
    how: str,
) -> None:
    job = LosingJob()
    for number in range(TIMES):
        job.lose_one(how)
        if number:
            waits = dict(job.rig.job.worker_table.waiting_for(job.rig.now, 5.0))
            since = job.rig.job.worker_table.waited_since()["losses"]
            assert waits["losses"].startswith(f"{number + 1} workers in a row were lost within {{seconds}}")
            assert since < job.rig.now
    assert job.rig.job.error is None
    assert job.pauses[0] <= 1.0 and all(before <= after for before, after in pairwise(job.pauses))
    assert MAX_PAUSE_S <= job.pauses[-1] <= MAX_PAUSE_S + 1.0
    assert any("nothing shows that their work is at fault" in one.text for one in job.rig.job.story)

    lease = job.rig.take(job.worker)[0] if job.rig.assign(job.worker) else None
    assert lease is not None
    job.rig.acknowledge(job.worker, lease, 0)
    assert "losses" not in job.rig.job.worker_table.waiting_for(job.rig.now, 5.0)
    job.lose_one(how)
    assert job.pauses[-1] <= 1.0


def test_numbers_of_workers_that_change_meanwhile_do_not_start_them_sooner() -> None:
    job = LosingJob()
    for _ in range(6):
        job.lose_one("cannot be reached")
    lost = job.rig.handle(events.WorkerLost(job.worker, "stream", "Ray cannot reach it"))
    assert not of_kind(StartWorker, [*lost, *job.rig.handle(events.ScaleRequested(2, 0))])
    done: list[Instruction] = []
    while not of_kind(StartWorker, done):
        done = job.rig.handle(events.TimePassed(), after=1.0)
    assert len(of_kind(StartWorker, done)) == 2


def test_a_worker_that_was_not_started_in_a_pause_is_started_though_another_is_lost_behind_a_batch() -> None:
    losses = Losses()
    for number, time in enumerate((1.0, 20.0)):
        losses.add(Loss(f"worker-{number}", f"node-{number}", "stream", "its stream broke", 0.0, time))
    assert not losses.may_start(20.0)
    losses.delivered()
    losses.add(Loss("worker-2", "node-2", "stream", "its stream broke", 0.0, 20.5))
    assert losses.may_start(20.5) and losses.pause_ended(20.5) and not losses.pause_ended(20.5)


def test_a_read_hangs_only_when_its_storage_has_had_time_to_answer() -> None:
    assert STORAGE_ANSWERS_S == s3.CONNECT_S + s3.READ_S

    def hangs(seconds: float, *, reads: bool) -> bool:
        at = AtWork("read JsonLines", reads=reads)
        return hung(WorkerProgress(stuck="{seconds}", stuck_s=seconds, at=at), 8.0, 1) is not None

    assert hangs(9.0, reads=False) and not hangs(STORAGE_ANSWERS_S, reads=True)
    assert hangs(STORAGE_ANSWERS_S + 1.0, reads=True)
