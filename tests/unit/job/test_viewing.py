"""What a job says: what it waits for, how fast it is, and what pages show; and that it holds no more after long."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.job_views import MOST_CHANGES, MOST_SEEN, job_view, latest_window, live_job, sampled_steps
from pecan_ray.job.journal import packed, snapshot
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import (
    AskLeases,
    ReceivedBatches,
    TrainerProgress,
    TrainerReport,
    WorkerProgress,
)
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.speed import MOST_BYTES_PER_S, JobSpeed, SpeedMeter
from pecan_ray.job.stats import JobEvent
from pecan_ray.job.story import FIRST, MOST_EPOCHS, NEWEST, Story
from pecan_ray.job.waiting import WaitLog
from pecan_ray.observe.dashboard.from_view import record_of
from pecan_ray.options import Workers
from pecan_ray.plan.splits import END
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Decision, Deployment, Window
from tests.unit.job.job_rig import JobRig, said


def test_what_is_waited_for_is_said_once_and_again_when_it_was_over_or_changes_but_not_all_the_time() -> None:
    waits = WaitLog(5.0)
    assert waits.look(0.0, {"a": "for a"}) == [] and waits.look(4.9, {"a": "for a"}) == []
    assert waits.look(5.0, {"a": "for a"}) == ["for a"]
    assert waits.look(500.0, {"a": "for a"}) == [] and waits.active_messages == ("for a",)
    assert waits.look(501.0, {}) == [] and not waits.active_messages
    assert waits.look(502.0, {"a": "for 3 of a"}) == [] and waits.look(506.9, {"a": "for 3 of a"}) == []
    assert waits.look(508.0, {"a": "for 3 of a"}) == ["for 3 of a"]
    assert waits.look(508.2, {"a": "for 2 of a"}) == []
    assert waits.look(508.4, {"a": "for 3 of a"}) == [] and waits.due is None, "what changes back needs no word"
    assert waits.look(508.5, {"a": "for 2 of a"}) == [] and waits.due == 513.0
    assert waits.look(512.9, {"a": "for 1 of a"}) == [] and waits.active_messages == ("for 3 of a",)
    assert waits.look(513.0, {"a": "for 1 of a"}) == ["for 1 of a"] and waits.due is None
    assert waits.active_messages == ("for 1 of a",)
    waits, text = WaitLog(5.0), {"a": "{'cpu': 1} since {seconds}"}
    waits.look(0.0, text)
    assert waits.look(7.0, text) == ["{'cpu': 1} since 7 s"]
    assert waits.look(70.0, text) == [] and waits.active_messages == ("{'cpu': 1} since 7 s",), "it is no other text"


def look(rig: JobRig, seconds: float = 6.0) -> str:
    """Let time pass in a job; return what it says meanwhile."""
    return said(rig.handle(events.TimePassed())) + said(rig.handle(events.TimePassed(), after=seconds))


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


def test_a_job_says_that_its_sources_are_being_listed_and_what_hinders_it() -> None:
    rig = JobRig()
    (worker,) = rig.come()
    rig.place(worker)
    rig.assign(worker)
    assert look(rig) == "", "nobody waits for it"
    text = "s3://data/ has been tried again for {seconds}: 503"
    done = rig.handle(events.ListingRetrying(text, 5.0)) + rig.handle(events.TimePassed())
    assert said(done) == "the sources are being listed: s3://data/ has been tried again for 5 s: 503"
    rig.handle(events.ListingRetrying(""))
    rig.handle(events.TimePassed())
    assert rig.job.trainer_update(0).waiting_for == ()
    rig.ask(worker, AskLeases(0, 0))
    assert "listed: 0 splits are known" in look(rig)


@pytest.mark.parametrize("unplaced", [1, 3])
def test_a_job_says_which_workers_have_no_place_and_why(unplaced: int) -> None:
    rig = JobRig(workers=Workers(1, unplaced))
    local, *others = rig.come()
    rig.place(local)
    rig.list_splits(1)
    for worker in others:
        rig.handle(events.WorkerPending(worker, "job other has all CPUs of far"))
    text = look(rig)
    assert "job other has all CPUs of far" in text and others[0] in text and text.count("\n") == 0
    assert ("2 more remote" in text) == (unplaced == 3)
    assert rig.job.trainer_update(0).waiting_for == (text,), "trainers are told too"
    for worker in others:
        rig.place(worker, "far")
    rig.handle(events.TimePassed())
    assert rig.job.trainer_update(0).waiting_for == ()


def test_what_a_worker_has_been_doing_for_long_is_said_at_once_until_it_does_something_else() -> None:
    rig = JobRig()
    (worker,) = rig.begin()
    decodes = WorkerProgress(stuck="decode on a.jpg for {seconds}", stuck_s=5.5)
    rig.handle(events.WorkerProgressReported(worker, decodes))
    assert said(rig.handle(events.TimePassed(), after=0.5)).endswith(f"{worker}: decode on a.jpg for 6 s")
    rig.handle(events.WorkerProgressReported(worker, WorkerProgress()))
    rig.handle(events.TimePassed())
    assert rig.job.trainer_update(0).waiting_for == ()


def step(number: int, target: Deployment, phase: str = "measure") -> PlacementStep:
    window = Window(batch_time=0.1, queue_size=2.0, batches=10, wait_time=0.02)
    return PlacementStep(float(number), window, target, Decision(target, phase, f"reason {number}"))


def test_a_long_timeline_is_thinned_and_keeps_its_changes() -> None:
    steps = tuple(step(i, Deployment(1, 1 if i < 7_777 else 2)) for i in range(10_000))
    kept = sampled_steps(steps)
    assert len(kept) <= MOST_SEEN + MOST_CHANGES + 1
    assert {0.0, 7_777.0, 9_999.0} <= {one.seconds for one in kept}
    assert [one.seconds for one in kept] == sorted(one.seconds for one in kept)
    restless = tuple(step(i, Deployment(1, i % 2)) for i in range(10_000))
    assert len(sampled_steps(restless)) <= MOST_SEEN + MOST_CHANGES + 1
    assert sampled_steps(steps[:3]) == steps[:3] and sampled_steps(()) == ()


def test_the_newest_window_that_can_be_used_tells_the_rate() -> None:
    good = step(1, Deployment(1, 0))
    touched = PlacementStep(2.0, Window(9.0, 0.0, 10, touched=True), Deployment(1, 0), good.decision)
    assert latest_window((good, touched), ()) == good.window
    assert latest_window((touched,), ()) is None


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


ROW_BYTES = 1000


class Run:
    """A job whose trainer and worker tell what a test says, second by second."""

    def __init__(self) -> None:
        self.rig, self.meter, self.number = JobRig(workers=Workers(1)), SpeedMeter(), 0
        (self.worker,) = self.rig.begin(splits=4)
        self.trainer, self.produced = TrainerProgress(), WorkerProgress()

    def second(self, rows: int, waited_s: float, hits: float = 0.0, stages: StageSeconds | None = None) -> JobSpeed:
        self.number += 1
        before = self.trainer
        self.trainer = TrainerProgress(
            before.yielded, before.rows + rows, before.waited_s + waited_s, before.elapsed_s + 1.0
        )
        nbytes = rows * ROW_BYTES
        self.produced = replace(
            self.produced,
            elements=self.produced.elements + rows,
            remote_bytes=self.produced.remote_bytes + round(nbytes * (1 - hits)),
            node_bytes=self.produced.node_bytes + round(nbytes * hits),
            stages=stages or self.produced.stages,
        )
        self.rig.handle(events.WorkerProgressReported(self.worker, self.produced), 1.0)
        self.rig.handle(events.TrainerReported(TrainerReport(0, "t0", self.number, progress=self.trainer)))
        return self.meter.look(self.rig.job, self.rig.now)


def test_of_a_job_that_waits_half_of_the_time_the_ideal_is_twice_its_speed_in_the_last_seconds() -> None:
    run = Run()
    for _ in range(20):
        run.second(10, 0.0)
    for _ in range(20):
        speed = run.second(100, 0.5, hits=0.75)
    assert speed.rows_per_s == pytest.approx(100)
    assert (speed.wait_share, speed.hit_share) == pytest.approx((0.5, 0.75), abs=0.01)
    assert speed.bytes_per_s == pytest.approx(100 * ROW_BYTES)
    assert speed.ideal_bytes_per_s == pytest.approx(200 * ROW_BYTES, rel=0.01)


def test_a_loop_that_does_nothing_is_as_fast_as_its_workers_compute() -> None:
    run = Run()
    stages = StageSeconds(observed_s=10.0, threads_s=20.0, operators=(("decode", 4.0),))
    for second in range(3):
        speed = run.second(100, 1.0, stages=stages)
        assert second == 0 or speed.ideal_bytes_per_s == pytest.approx((second + 1) * 100 / 2.0 * ROW_BYTES)


def test_before_anything_has_come_nothing_is_known_and_no_speed_is_endless() -> None:
    run = Run()
    assert run.meter.look(run.rig.job, 0.0) == JobSpeed()
    run.second(0, 1.0)
    speed = run.second(10**9, 1.0)
    assert speed.ideal_bytes_per_s == MOST_BYTES_PER_S
    stopped = run.second(0, 0.0)
    assert stopped.ideal_bytes_per_s is not None


@pytest.mark.parametrize("told_every", [1, 3, 6])
def test_the_size_of_a_dataset_is_known_from_a_part_of_it_although_workers_tell_seldom(told_every: int) -> None:
    splits, lot, size = 400, 4, 1 << 20
    rig, meter = JobRig(workers=Workers(1)), SpeedMeter()
    (worker,) = rig.begin(splits=splits)
    epoch = rig.assign(worker).epoch
    taken = read = 0
    found: list[float | None] = []
    for second in range(1, 80):
        read += 4
        while taken < min(splits, read + lot):  # one lot is asked for while the one before is being read
            rig.response(worker, AskLeases(epoch, 0, lot))
            taken += lot
        if second % told_every == 0:
            rig.handle(events.WorkerProgressReported(worker, WorkerProgress(remote_bytes=read * size)), 1.0)
        found.append(meter.look(rig.job, rig.now).dataset_bytes)
    known = [one for one in found if one is not None]
    assert len(known) > 60, "from a twentieth of an epoch on"
    assert known == pytest.approx([splits * size] * len(known), rel=0.02)


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
