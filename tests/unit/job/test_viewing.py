"""What a job says of ranks that have not come, what pages show, and that it holds no more after long."""

from __future__ import annotations

import pickle

import pytest

from pecan_ray.job import events
from pecan_ray.job.job_views import MOST_CHANGES, MOST_SEEN, job_view, live_job, sampled_steps
from pecan_ray.job.journal import packed, snapshot
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import (
    Receipts,
    ReceivedBatches,
    TrainerProgress,
)
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobEvent
from pecan_ray.job.story import FIRST, MOST_EPOCHS, NEWEST, Story
from pecan_ray.observe.dashboard.from_view import record_of
from pecan_ray.plan.splits import END
from pecan_ray.plan.windows import Decision, Deployment, Window
from tests.unit.job.job_rig import JobRig, said


def look(rig: JobRig) -> str:
    """Let time pass in a job; return what it says meanwhile."""
    return said(rig.handle(events.TimePassed())) + said(rig.handle(events.TimePassed(), after=6.0))


def test_a_job_says_which_ranks_have_not_come_and_in_what_one_differs_until_it_comes_as_the_others_are() -> None:
    rig = JobRig(LedgerShape(world_size=20))
    for rank in (0, 2, 3):
        rig.handle(events.TrainerRegistered(rank, f"t{rank}", "node", (("map", "1"),)))
    rig.handle(events.TrainerRegistered(1, "t1", "node", (("map", "{2}"),)))
    text = look(rig)
    assert "ranks 1, 4, 5, 6, 7, 8, 9, 10 and 9 more of 20 did not come within 6 s" in text
    assert "rank 1 differs from rank 0 in map: {2} instead of 1, and was refused" in text
    assert look(rig) == ""
    rig.handle(events.TrainerWaiting(0, "t0"))
    rig.handle(events.TrainerRegistered(1, "t1", "node", (("map", "1"),)))
    text = look(rig)
    assert "ranks 4, 5, 6" in text and "differs" not in text


def step(number: int, target: Deployment) -> PlacementStep:
    window = Window(batch_time=0.1, queue_size=2.0, batches=10, wait_time=0.02)
    return PlacementStep(float(number), window, target, Decision(target, "measure", f"reason {number}"))


def test_a_long_timeline_is_thinned_and_keeps_its_changes() -> None:
    steps = tuple(step(i, Deployment(1, 1 if i < 7_777 else 2)) for i in range(10_000))
    kept = sampled_steps(steps)
    assert len(kept) <= MOST_SEEN + MOST_CHANGES + 1
    assert {0.0, 7_777.0, 9_999.0} <= {one.seconds for one in kept}
    assert [one.seconds for one in kept] == sorted(one.seconds for one in kept)
    restless = tuple(step(i, Deployment(1, i % 2)) for i in range(10_000))
    assert len(sampled_steps(restless)) <= MOST_SEEN + MOST_CHANGES + 1
    assert sampled_steps(steps[:3]) == steps[:3] and sampled_steps(()) == ()


def test_a_job_that_has_just_begun_has_a_page() -> None:
    rig = JobRig()
    rig.begin()
    live = live_job(rig.job, 12.0, "photographs")
    assert (live.job, live.pipeline, live.seconds, live.rate) == ("job", "photographs", 12.0, None)
    progress = TrainerProgress(yielded=10, rows=100, waited_s=2.0, elapsed_s=8.0, queued=3)
    rig.job.trainers.ranks[0].progress = progress
    view = job_view(rig.job, 12.0, live, "")
    assert [(one.placement, one.state) for one in view.placed] == [("local", "runs")]
    assert [one.rank for one in view.trainers] == [0]
    shown = record_of(view, {})
    assert [one.state for one in shown.workers] == ["runs"]
    (told,) = shown.trainers
    assert (told.waited, told.queued, told.elements) == (0.25, 3, 100)
    assert shown.line.running.local == 1 and not shown.cost


SLACK_BYTES = 200
"""Numbers of more digits."""


class LongJob:
    """A job without an end, whose only worker makes a batch of each split."""

    def __init__(self, splits: int) -> None:
        self.rig, self.splits = JobRig(LedgerShape(epochs=None, batch_size=1)), splits
        (self.worker,) = self.rig.begin(splits)
        self._used = 0

    def epoch(self) -> None:
        """Play an epoch."""
        epoch = self.rig.assign(self.worker).epoch
        for lease in list(self.rig.leases(self.worker)):
            self._used += 1
            ack = ReceivedBatches(self.worker, epoch, {lease.key: [(0, END)]}, 1, 1, 10)
            self.rig.report(received=Receipts((ack,), kept=self._used), progress=TrainerProgress(yielded=self._used))
        self.rig.end(self.worker)
        self.rig.handle(events.TimePassed(), after=0.01)
        assert self.rig.job.ledger.epoch == epoch + 1
        self.rig.done.clear()

    def held(self) -> int:
        """Return how many bytes a compacted journal has."""
        return len(packed(snapshot(self.rig.job, (), self.rig.now, 1)))


@pytest.mark.parametrize(
    ("splits", "epochs"), [(1, 3 * MOST_EPOCHS), (40, 20), pytest.param(10, 10_000, marks=pytest.mark.slow)]
)
def test_a_job_holds_no_more_after_many_batches_and_epochs(splits: int, epochs: int) -> None:
    job = LongJob(splits)
    for _ in range(epochs // 2):
        job.epoch()
    before = job.held()
    for _ in range(epochs // 2):
        job.epoch()
    assert job.rig.job.received.elements == splits * epochs
    assert job.held() < before + SLACK_BYTES
    assert len(pickle.dumps(job.rig.job.stats(0.0))) < before


def test_of_very_many_events_the_first_and_the_newest_are_told_and_how_many_were_between() -> None:
    story = Story()
    for number in range(FIRST + NEWEST + 7):
        story.add(JobEvent(float(number), "worker", str(number)))
    told = list(story)
    assert [one.text for one in told[: FIRST + 2]] == [
        *map(str, range(FIRST)),
        "7 events before this are not kept",
        str(FIRST + 7),
    ]
    assert len(told) == FIRST + 1 + NEWEST and told[-1].text == str(FIRST + NEWEST + 6)
