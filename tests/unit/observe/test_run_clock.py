"""The clock of a run, and what a report makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.job.facts import JobEvent
from pecan_ray.job.run_time import RunTime
from pecan_ray.observe.report import Report, WorkerReport
from pecan_ray.observe.run_clock import RunClock


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_second_counts_once_for_the_part_that_runs() -> None:
    hand = Hand()
    clock = RunClock(hand)
    hand.now = 101.0
    clock.enter("ray")
    hand.now = 104.0
    clock.enter("controller", at=103.0)  # a moment that has passed
    assert clock.so_far() == RunTime(order_s=1, ray_s=2, controller_s=1)
    clock.enter("first_batch")
    hand.now = 109.0
    clock.enter("trained")
    hand.now = 110.0
    clock.stop()
    hand.now = 200.0
    clock.enter("waited")
    clock.stop()
    spent = clock.so_far()
    assert spent == RunTime(order_s=1, ray_s=2, controller_s=1, first_batch_s=5, trained_s=1)
    assert (spent.start_s, spent.total_s, spent.pace_s) == (9, 10, 1)


def test_a_report_tells_each_part_and_events_on_the_same_clock() -> None:
    spent = RunTime(ray_s=6, controller_s=1, first_batch_s=1, waited_s=1, trained_s=1)
    report = Report("job", 3.5, 11, 110, epochs=2, events=(JobEvent(0.5, "worker", "a worker runs"),)).with_time(spent)
    lines = str(report).splitlines()
    assert lines[0] == (
        "pecan job job: 11 batches, 110 elements of 2 finished epochs in 10.0 s from iter_batches() on "
        "(11 elements/s; 1.1 batches/s, 5.0 behind the first)"
    )
    assert [" ".join(line.split()) for line in lines[1:6]] == [
        "Ray's start 6.000 s 60%",
        "the job's controller 1.000 s 10%",
        "waiting for the first batch 1.000 s 10%",
        "waiting for later batches 1.000 s 10%",
        "training 1.000 s 10%",
    ]
    assert lines[6].startswith("  bottleneck: the start took 8.0 s of 10.0 s, most of it Ray's start (6.0 s)")
    assert lines[-1] == "      7.0 s  a worker runs", "the controller began 6.5 s after iter_batches() was called"


def test_what_a_report_says_of_workers_is_read_by_name_and_stays_an_object_in_json() -> None:
    worker = WorkerReport("local", elements=40, batches=10, threads=0)
    assert worker["batches"] == worker.batches == 10
    report = Report(job="one", seconds=2.0, batches=10, elements=40, workers={"local-0": worker})
    told = json.loads(report.to_json())["workers"]["local-0"]
    assert (told["placement"], told["elements"], told["stages"]["operators"]) == ("local", 40, [])
    assert "local-0 (local): 40 elements in 10 batches\n" in f"{report}\n"
    report = replace(report, workers={"local-0": replace(worker, hedged=3, hedges_won=2)})
    assert "in 10 batches, 3 late reads asked for twice (2 won)\n" in f"{report}\n"


def slow(i: int) -> int:
    """Count to many, which takes a while."""
    return i + 0 * sum(range(20_000))


@pytest.fixture
def run() -> Iterator[pecan.Batches]:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(24)), name="clocked").map(slow, on="i").batch(4)
    with pipe.iter_batches(epochs=2, debug=True) as batches:
        yield batches


def test_a_run_in_this_process_is_told_as_one(run: pecan.Batches) -> None:
    for _ in range(7):
        next(run)
    report = run.report()
    assert report.epochs == 1, "and one batch of the second"
    assert report.bottleneck is not None and "without debug=True workers" in report.bottleneck.text
    assert report.time.first_batch_s > 0 and report.time.waited_s > 0 and report.time.ray_s == 0
    assert list(run) != [] and run.report().epochs == 2
    ended = run.report().time
    assert run.report().time == ended, "the clock stands still behind the end"
