"""What a controller tells pages about its job: bounded, with what matters in it."""

from __future__ import annotations

from pecan_ray.job.job_views import MOST_CHANGES, MOST_SEEN, job_view, live_job, newest_window, sampled_steps
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.placing import PlacementStep
from pecan_ray.observe.dashboard.from_view import record_of
from pecan_ray.plan.windows import Decision, Deployment, Window
from tests.unit.job.job_rig import JobRig


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
    assert newest_window((good, touched), ()) == good.window
    assert newest_window((touched,), ()) is None


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
    assert shown.line.local == 1 and not shown.cost
