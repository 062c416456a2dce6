"""What holds a run up: numbers in, words out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job.bottleneck import Bottleneck, RunNumbers, bottleneck
from pecan_ray.job.run_time import RunTime
from pecan_ray.plan.stage_seconds import StageSeconds

WAITS = RunTime(ray_s=2, controller_s=1, first_batch_s=1, waited_s=60, trained_s=40)
"""For 60 % of the time behind the first batch."""
FULL: dict[str, Any] = {"observed_s": 100.0, "threads_s": 200.0, "cpu_s": 190.0}
"""A worker with two threads, both on CPUs."""
COMPUTES = StageSeconds(**FULL, reading_s=10, batching_s=10, operators=(("decode", 40.0), ("resize", 140.0)))
IDLES = StageSeconds(100.0, 200.0, 5.0, reading_s=10, operators=(("resize", 5.0),))


def found(time: RunTime = WAITS, stages: StageSeconds = COMPUTES, **more: Any) -> Bottleneck:
    return bottleneck(RunNumbers(time, 100, stages, **{"local": 1, **more}))


SLEEPS = StageSeconds(100, 200, 9, 1, 1, 0, (("fetch", 199.0),))
READS = StageSeconds(100, 200, 20, 95, 5, 0, (("resize", 20.0),))
LOCKED = StageSeconds(100, 1600, 101, 99, 5, 0, (("parse", 1400.0),), locked_s=100.0)
"""Sixteen threads in a function of Python, and the source's reader, use one CPU together."""
LOCKED_BY_A_PART = StageSeconds(100, 1600, 500, 10, 5, 0, (("parse", 1580.0),), locked_s=98.0)
"""Sixteen threads on sixteen CPUs need the lock for a fifth of their work."""
STARVED = StageSeconds(100, 200, 110, 1, 2, 0, (("parse", 195.0),), locked_s=3.0)
"""Two threads that release the lock, on a machine where others use the CPUs, too."""
ALONE = StageSeconds(100, 100, 98, 10, 2, 0, (("parse", 97.0),), locked_s=99.0)
"""A single thread holds the lock: the engine has found that a second one gains nothing."""
ALONE_IN_C = StageSeconds(100, 100, 98, 10, 2, 0, (("parse", 97.0),), locked_s=3.0)
IN_PROCESSES = StageSeconds(100, 200, 9, 5, 1, 0, (("parse", 199.0),), ("parse",))
STACKS = StageSeconds(**FULL, batching_s=170, operators=(("f", 30.0),))
BLOCKED = StageSeconds(**FULL, blocked_s=80, operators=(("f", 30.0),))


@pytest.mark.parametrize(
    ("kind", "operator", "words", "run"),
    [
        ("start", "", "most of it Ray's start (9.0 s)", {"time": RunTime(ray_s=9, first_batch_s=1, trained_s=2)}),
        ("start", "", "the wait for the first batch (9.0 s)", {"time": RunTime(first_batch_s=9, trained_s=2)}),
        ("start", "", "most of it the job's controller", {"time": RunTime(controller_s=9, trained_s=2)}),
        ("trainer", "", "input keeps up, and was waited for 1% ", {"time": RunTime(ray_s=2, waited_s=1, trained_s=99)}),
        ("conversion", "", "takes 30% of", {"time": RunTime(waited_s=10, converted_s=30, trained_s=60)}),
        ("operator", "resize", "the CPU, by operator resize: the trainer waited 60% of", {}),
        ("operator", "resize", "or run more workers than 3 local and 2 remote ones", {"local": 3, "remote": 2}),
        ("operator", "resize", "or give AutoPlacement more room", {"placed": True}),
        ("operator", "fetch", "operator fetch, which waits", {"stages": SLEEPS}),
        ("operator", "parse", "Python's lock, held by operator parse", {"stages": LOCKED}),
        ("operator", "parse", "Python's lock, held by operator parse", {"stages": LOCKED_BY_A_PART}),
        ("operator", "parse", "the CPU, by operator parse", {"stages": STARVED}),
        ("operator", "parse", "the CPU, by operator parse", {"stages": replace(LOCKED_BY_A_PART, cpu_s=1500.0)}),
        ("operator", "parse", "the lock for 99% of the time, so that more threads would wait", {"stages": ALONE}),
        ("operator", "parse", "the CPU, by operator parse", {"stages": ALONE_IN_C}),
        ("operator", "parse", "parse, in processes of its own: the trainer waited", {"stages": IN_PROCESSES}),
        ("storage", "", "use a faster disk", {"stages": READS}),
        ("storage", "", "keep what is read on the nodes", {"stages": READS, "remote_bytes": 1 << 30}),
        ("batching", "", "85% of their work on putting", {"stages": STACKS}),
        ("network", "", "workers had finished ones for 80%", {"stages": BLOCKED}),
        ("unknown", "", "workers had nothing to do", {"stages": IDLES}),
        ("operator", "blur", "in AutoOrder's sample", {"stages": StageSeconds(), "op_seconds": (("blur", 0.1),)}),
        ("unknown", "", "seen at work too shortly", {"stages": StageSeconds()}),
        ("unknown", "", "in this process, where input took 59% of", {"in_process": True}),
    ],
)
def test_what_holds_a_run_up_is_named(kind: str, operator: str, words: str, run: dict[str, Any]) -> None:
    told = found(**run)
    assert (told.kind, told.operator) == (kind, operator) and words in told.text, told.text
    assert "\n" not in told.text


@pytest.mark.parametrize(
    ("stages", "run", "words"),
    [
        (LOCKED_BY_A_PART, {"cpus": 16}, "8 workers of 2 threads would be up to 3.2 times as fast (workers=None"),
        (LOCKED, {"cpus": 16}, "16 workers of 1 thread would be up to 15.8 times as fast"),
        (ALONE, {"cpus": 2.5, "placed": True}, "2 workers of 1 thread would be up to 2.0 times as fast; without it"),
        (LOCKED_BY_A_PART, {"cpus": 16, "local": 3}, ""),  # they have the CPUs already
        (LOCKED_BY_A_PART, {"cpus": 16, "remote": 1}, ""),
        (LOCKED, {"cpus": 0.0}, ""),
        (ALONE, {"cpus": 0.5}, ""),
        (COMPUTES, {"cpus": 64}, ""),
        (StageSeconds(operators=(("parse", 0.0),)), {"cpus": 64, "op_seconds": (("parse", 1.0),)}, ""),  # not seen yet
    ],
)
def test_beside_the_lock_stand_the_workers_and_threads_that_would_be_faster(
    stages: StageSeconds, run: dict[str, Any], words: str
) -> None:
    told = found(stages=stages, **run).text
    assert words in told if words else "times as fast" not in told, told


def test_without_a_batch_nothing_is_said() -> None:
    assert "no batch has come yet" in bottleneck(RunNumbers(WAITS, 0)).text


def test_behind_a_long_start_stands_what_would_hold_up_a_longer_run() -> None:
    told = found(RunTime(ray_s=200, waited_s=60, trained_s=40))
    assert told.kind == "start" and told.longer is not None and told.longer.operator == "resize"
    assert bottleneck(RunNumbers(RunTime(ray_s=9, trained_s=1), 3)).longer is None, "three batches show nothing"
    assert found(RunTime(first_batch_s=0.5, trained_s=0.1)).kind != "start", "it was short"


@pytest.mark.parametrize(
    ("time", "share", "reading_s", "gain"),
    [
        (RunTime(waited_s=60, trained_s=40), 0.5, 0, 0.5),  # half of 100 s
        (RunTime(waited_s=60, trained_s=20, converted_s=20), 0.5, 0, 0.5),
        (RunTime(waited_s=20, trained_s=80), 0.5, 0, 0.2),  # then the trainer sets the pace
        (RunTime(ray_s=100, waited_s=60, trained_s=40), 0.5, 0, 0.25),  # and the start stays
        (RunTime(waited_s=90, trained_s=10), 0.9, 80, 0.2),  # then reading sets the pace
    ],
)
def test_no_more_is_gained_than_what_sets_the_pace_then_lets(
    time: RunTime, share: float, reading_s: float, gain: float
) -> None:
    slow = StageSeconds(**FULL, reading_s=reading_s, operators=(("slow", 200 * share), ("others", 200 * (1 - share))))
    told = found(time, slow)
    assert told.operator == "slow" and told.gain == pytest.approx(gain)
    assert f"up to {gain:.0%} less time" in told.text


def test_seconds_of_workers_are_added_stage_by_stage() -> None:
    one = StageSeconds(1, 2, 3, 4, 5, 6, (("a", 1.0), ("b", 2.0)), ("b",))
    both = one + StageSeconds(10, 20, 30, 40, 50, 60, (("b", 20.0), ("c", 30.0)), ("a", "b"))
    assert both == StageSeconds(11, 22, 33, 44, 55, 66, (("a", 1.0), ("b", 22.0), ("c", 30.0)), ("a", "b"))
    assert both.computing_s == 53
