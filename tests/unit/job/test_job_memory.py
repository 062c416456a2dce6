"""A job that runs for long holds no more than one that has just begun, and nor does its journal behind a compaction."""

from __future__ import annotations

import pickle

import pytest

from pecan_ray.job import events
from pecan_ray.job.facts import JobEvent
from pecan_ray.job.journal import packed, snapshot
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import ReceivedBatches, TrainerProgress
from pecan_ray.job.story import FIRST, MOST_EPOCHS, NEWEST, Story
from pecan_ray.plan.splits import END
from tests.unit.job.job_rig import JobRig

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
            self.rig.report(received_batches=(ack,), kept=self._used, progress=TrainerProgress(yielded=self._used))
        self.rig.end(self.worker)
        self.rig.handle(events.TimePassed(), after=0.01)
        assert self.rig.job.ledger.epoch == epoch + 1
        self.rig.log.clear()
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
    assert job.rig.job.rows == splits * epochs
    assert job.held() < before + SLACK_BYTES
    assert len(pickle.dumps(job.rig.job.facts(0.0))) < before


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
