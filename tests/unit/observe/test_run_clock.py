"""How long a run takes, how many batches come, and what one batch again and again tells."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.job.bottleneck import RunNumbers, bottleneck
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.run_time import RunTime
from pecan_ray.job.saved_state import SavedState
from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.epoch_watch import EpochWatch
from pecan_ray.observe.report import Report
from pecan_ray.observe.report_staff import WorkerReport
from pecan_ray.observe.run_clock import RunClock
from pecan_ray.observe.trainer_speed import LATELY_S, RecentSpeed, TrainerSpeed, known_batches, run_length, to_str
from pecan_ray.options import IterOptions


def test_every_second_counts_once_for_the_part_that_runs() -> None:
    moments = iter([100.0, 101.0, 104.0, 104.0, 109.0, 110.0])
    clock = RunClock(lambda: next(moments, 200.0))
    clock.enter("ray")
    clock.enter("controller", at=103.0)  # a moment that has passed
    assert clock.so_far() == RunTime(order_s=1, ray_s=2, controller_s=1)
    clock.enter("first_batch")
    clock.enter("trained")
    clock.stop()
    clock.enter("waited")
    clock.stop()
    spent = clock.so_far()
    assert spent == RunTime(order_s=1, ray_s=2, controller_s=1, first_batch_s=5, trained_s=1)
    assert (spent.start_s, spent.total_s, spent.running_s) == (9, 10, 1)


def test_a_report_tells_each_part_events_on_the_same_clock_and_workers_by_name() -> None:
    spent = RunTime(ray_s=6, controller_s=1, first_batch_s=1, waited_s=1, trained_s=1)
    worker = WorkerReport(40, 10, hedged=3, hedges_won=2, placement="local")
    events = (JobEvent(0.5, "worker", "a worker runs"),)
    report = Report("job", 3.5, 11, 110, epochs=2, events=events, workers={"local-0": worker}).with_time(spent)
    lines = [" ".join(line.split()) for line in str(report).splitlines()]
    assert lines[0] == (
        "pecan job job: 11 batches, 110 elements of 2 finished epochs in 10.0 s from iter_batches() on "
        "(11 elements/s; 1.1 batches/s, 5.0 behind the first)"
    )
    assert lines[1:6] == [
        "Ray's start 6.000 s 60%",
        "the job's controller 1.000 s 10%",
        "waiting for the first batch 1.000 s 10%",
        "waiting for later batches 1.000 s 10%",
        "training 1.000 s 10%",
    ]
    assert lines[6].startswith("bottleneck: the start took 8.0 s of 10.0 s, most of it Ray's start (6.0 s)")
    assert "local-0 (local): 40 elements in 10 batches, 3 late reads asked for twice (2 won)" in lines
    assert lines[-1] == "7.0 s a worker runs", "the controller began 6.5 s after iter_batches() was called"
    told = json.loads(report.to_json())["workers"]["local-0"]
    assert (told["placement"], told["elements"], told["stages"]["operators"]) == ("local", 40, [])


def at(seconds: float, batches: int, waited_s: float = 0.0) -> TrainerProgress:
    return TrainerProgress(batches, 10 * batches, waited_s, seconds)


def test_a_pace_is_that_of_the_last_seconds_and_its_total_that_of_epochs_like_the_first() -> None:
    assert RecentSpeed(None, None).look(at(4, 8, waited_s=1)) == TrainerSpeed(8, None, 2, 20, 0.25)
    pace = RecentSpeed(end_epoch=1, total=1000)
    pace.look(at(60, 10, waited_s=59))
    pace.look(at(60 + LATELY_S, 110, waited_s=60))
    assert pace.look(at(60 + 2 * LATELY_S, 310, waited_s=65)) == TrainerSpeed(310, 1000, 20, 200, 0.5)
    pace = RecentSpeed(end_epoch=3, total=None)
    pace.epoch(0, 0)
    assert pace.look(at(1, 5)).total is None
    pace.epoch(1, 7)
    assert pace.look(at(2, 8)).total == 21
    pace.epoch(2, 15)
    assert pace.look(at(3, 16)).total == 21
    assert pace.look(at(4, 22)).total is None, "there are more than were expected: nothing is known"
    pace = RecentSpeed(end_epoch=None, total=None)
    pace.epoch(0, 0)
    pace.epoch(1, 7)
    assert pace.look(at(2, 8)).left_s is None


@pytest.mark.parametrize(
    ("pace", "dollars", "words"),
    [
        (TrainerSpeed(5, None, 2.5, 25, 0.25), 0.01234, "5 batches, 2.5/s, 25 elements/s, waiting 25%, two, $0.0123"),
        (TrainerSpeed(5, 100, 1, 9, 0), None, "5 of 100 batches, 1.0/s, 9 elements/s, waiting 0%, two, 1:35 left"),
        (
            TrainerSpeed(0, 8000, 1, 1, 1),
            None,
            "0 of 8000 batches, 1.0/s, 1 elements/s, waiting 100%, two, 2:13:20 left",
        ),
        (TrainerSpeed(5, 100, 0, 0, 1), None, "5 of 100 batches, 0.0/s, 0 elements/s, waiting 100%, two"),
    ],
)
def test_a_pace_is_spelled_in_one_line(pace: TrainerSpeed, dollars: float | None, words: str) -> None:
    assert to_str(pace, "two", dollars) == words


def seconds_of(*batches: tuple[int, float, float]) -> list[float]:
    """Return what a watch finds: of batches by epoch, seconds that have passed, and those waited of them."""
    watch = EpochWatch()
    found = [watch.batch(epoch, TrainerProgress(waited_s=waited, elapsed_s=at)) for epoch, at, waited in batches]
    return [seconds for seconds in (*found, watch.end()) if seconds is not None]


def test_the_second_epoch_alone_is_measured_unless_it_is_short_or_the_trainer_was_busy_in_it() -> None:
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 10), (1, 13, 12)) == [3]
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 10), (1, 13, 12), (2, 14, 13), (3, 15, 14)) == [3], "and no other"
    assert seconds_of() == seconds_of((0, 5, 5), (0, 10, 9)) == []
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 9.5), (1, 20, 10)) == []
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 10), (1, 11.9, 10.9)) == [], "too short to tell anything"


PIPE = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(95)), name="ours").batch(10)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epochs": None}, "epochs=None has no end"),
        ({"world_size": 2}, "each of several ranks"),
        ({"share": True, "visitation": "zero_or_more"}, "a reader that shares"),
        ({"sharding": "off"}, 'sharding="off"'),
        ({"on_error": "skip"}, 'on_error="skip" may leave'),
        ({"visitation": "zero_or_more"}, 'visitation="zero_or_more" may lose'),
    ],
)
def test_it_is_said_why_a_length_is_not_known(options: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=f"how many batches ours gives is not known before its end: {why}"):
        run_length("ours", PIPE.plan, IterOptions(**options), None)


def numbers(**config: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(
        pecan.sources.Arrays(i=np.arange(100)), name="numbers", config=pecan.Config(**config)
    ).batch(8)


def test_one_batch_comes_as_often_as_a_run_has_batches() -> None:
    batches = list(numbers().iter_batches(epochs=2, headspace=True))
    assert len(batches) == 2 * 13 and all(batch is batches[0] for batch in batches)
    assert batches[0]["i"].tolist() == list(range(8))
    assert len(list(numbers().iter_batches(headspace=True, rank=1, world_size=2))) == 7, "its part of them"
    assert len(numbers().iter_batches(headspace=3, epochs=2)) == 6
    assert len(list(islice(numbers().iter_batches(headspace=3, epochs=None), 50))) == 50


def test_it_is_no_run_and_the_report_tells_the_loops_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with numbers(report_folder=tmp_path).iter_batches(headspace=True) as batches:
        list(batches)
        report = batches.report()
        with pytest.raises(PlanError, match="no state, since debug=True and headspace"):
            batches.state_dict()
    with numbers().iter_batches(debug=True) as batches:
        assert len(list(batches)) == 13
        assert "without debug=True workers" in str(batches.report())
    assert report.bottleneck is not None and report.bottleneck.kind == "headspace"
    assert (report.batches, report.elements, report.epochs) == (13, 13 * 8, 1)
    assert "numbers (headspace: one batch again and again): 13 batches" in str(report)
    assert "no run, but one batch 13 times" in str(report)
    assert "this is no run" in caplog.text and list(tmp_path.iterdir()) == []
    told = bottleneck(RunNumbers(RunTime(first_batch_s=9, trained_s=2), 100, in_process=True, headspace=True))
    assert "20.00 ms for a batch (50.0 batches/s)" in told.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.iter_batches(headspace=0), "headspace must be True, False or batches of an epoch >= 1, but got 0"),
        (lambda p: p.iter_batches(headspace="yes"), "headspace must be True or False or a whole number, but got 'yes'"),
        (lambda p: p.unbatch().iter_batches(headspace=True), "is not known without reading the data: say how many"),
        (lambda p: p.iter_batches(headspace=True, state={}), "headspace cannot go on from a state"),
        (lambda p: list(p.filter(lambda i: False, on="i").iter_batches(headspace=3)), "the pipeline yields nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        call(numbers())


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"epochs": 3}, 30),
        ({"epochs": 3, "rank": 0, "world_size": 2}, 15),
        ({"epochs": None}, None),
        ({"epochs": 3, "sharding": "off"}, None),
    ],
)
def test_it_is_known_how_many_batches_come_where_rows_lie_in_memory(options: dict[str, Any], count: int | None) -> None:
    assert known_batches(PIPE.plan, IterOptions(**options), None) == count


def test_a_length_is_that_of_all_epochs_of_what_is_left_of_a_state_and_of_no_file() -> None:
    files = pecan.PecanPipeline(pecan.sources.TextLines("/nowhere/*.txt")).batch(10).plan
    assert known_batches(files, IterOptions(epochs=3), None) is None, "nothing is listed for it"
    with PIPE.iter_batches(epochs=3, debug=True) as batches:
        bar = tqdm(batches, file=io.StringIO())
        assert bar.total == 30 and sum(1 for _ in bar) == 30 == len(batches)
    saved = SavedState(ResumePoint(0, ()), 4, 0, "python", ())
    assert run_length("ours", PIPE.plan, IterOptions(epochs=2), saved) == 16
    with PIPE.filter(lambda e: True).iter_batches(debug=True) as batches:
        with pytest.raises(TypeError, match="its data would have to be read"):
            len(batches)
        assert batches and len(list(batches)) == 10
