"""What AutoPlacement does next is told with its reason, in the report, by `explain()` and in the progress line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pecan_ray.job.facts import JobFacts
from pecan_ray.job.messages import Orders, TrainerProgress
from pecan_ray.job.next_step import next_step, next_step_of
from pecan_ray.observe.placement import explain_with_next_step
from pecan_ray.observe.progress import who_works
from pecan_ray.observe.report import Report
from pecan_ray.plan.windows import Decision, Deployment
from tests.unit.job.test_job_deadline import TIMELINE, facts

HERE = Deployment(1, 2)
WHY = "1 local + 2 remote cost the least of 3 measured."


def decided(phase: str, target: Deployment = HERE) -> Decision:
    return Decision(target, phase, WHY)


@pytest.mark.parametrize(
    ("last", "told", "acts"),
    [
        (None, "measures 1 local + 2 remote first: no window of batches has ended yet", True),
        (decided("add_remote", Deployment(1, 4)), "goes from 1 local + 2 remote to 1 local + 4 remote: 1 local", True),
        (decided("measure"), "measures, before it decides, what 1 local + 2 remote do: 1 local + 2 remote cost", True),
        (decided("discarded"), "measures again what 1 local + 2 remote do: ", True),
        (decided("converged"), "does nothing as long as batches take as long as now: 1 local + 2 remote cost", False),
        (decided("failed"), "does nothing: 1 local", False),
    ],
)
def test_the_newest_decision_is_what_comes_next(last: Decision | None, told: str, acts: bool) -> None:
    step = next_step(HERE, last, decides=True)
    assert str(step).startswith(f"AutoPlacement {told}") and step.acts == acts
    assert not str(step).endswith(".")


def test_where_nobody_decides_it_is_said_that_nothing_comes() -> None:
    fixed = next_step_of(JobFacts("job", deployments=((0.0, Deployment(2, 0)),)))
    assert str(fixed).startswith("AutoPlacement does nothing: the numbers of workers are fixed, 2 local + 0 remote")
    stopped = next_step(HERE, decided("converged"), decides=True, stopped=True)
    assert str(stopped) == "AutoPlacement does nothing more: scale() has fixed the numbers of workers"


def test_the_report_tells_it_behind_the_verdict_and_explain_at_its_end() -> None:
    report = Report.of_job(facts(), TrainerProgress(elapsed_s=20.0), 1.0)
    assert "\n  next: AutoPlacement does nothing as long as" in str(report)
    assert report.next_step in explain_with_next_step(facts()).splitlines()[-1]
    assert Report.of_job(facts(), TrainerProgress(elapsed_s=20.0), 1.0, over=True).next_step == report.next_step
    gone = replace(facts(), lost="it is gone")
    assert "next" not in explain_with_next_step(gone) and not Report.of_job(gone, TrainerProgress(), None).next_step


def test_while_it_looks_the_report_says_where_it_goes() -> None:
    looking = replace(facts(), timeline=TIMELINE[:1], deployments=((0.0, Deployment(1, 0)),))
    goes = "AutoPlacement goes from 1 local + 0 remote to 1 local + 2 remote: it is cheap enough"
    assert f"next: {goes}" in str(Report.of_job(looking, TrainerProgress(elapsed_s=20.0), 1.0))
    assert f"next: had the job gone on, {goes}" in str(Report.of_job(looking, TrainerProgress(), 1.0, over=True))


@pytest.mark.parametrize(("placing", "told"), [("", ""), ("keeps", ", which AutoPlacement keeps")])
def test_the_progress_line_says_whether_the_workers_stay(placing: Any, told: str) -> None:
    client: Any = SimpleNamespace(state=SimpleNamespace(orders=Orders(running=2, wanted=(1, 2), placing=placing)))
    assert who_works(client) == f"2 of 3 workers (1 local, 2 remote){told}"
