"""The pure parts of the comparison with peers: medians, ratios, and rounds that are not fair."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import tree
from benchmarks.peers.cases import CASES
from benchmarks.peers.child import window
from benchmarks.peers.judgement import Measurement, compare, mismatches, summary
from benchmarks.peers.sides import SIDES


def rounds(*rates: float | None, foreign: float = 0.0) -> list[Measurement]:
    return [Measurement(number, rate, foreign=foreign) for number, rate in enumerate(rates)]


def test_ratios_of_rates_of_cpu_time_and_to_a_bound_are_medians_of_those_within_the_rounds() -> None:
    # What happens to the machine from one round to the next happens to both.
    comparison = compare("ours", "peer", {"ours": rounds(400, 100, 75), "peer": rounds(200, 100, 25)}, 1.5)
    assert (comparison.ratio, comparison.least, comparison.most, comparison.met) == (2.0, 1.0, 3.0, True)
    even = {"ours": rounds(100), "peer": rounds(100)}
    assert compare("ours", "peer", even, 1.5).met is False
    assert compare("ours", "peer", even).met is None, "without a target nothing is met or missed"
    ours = [Measurement(number, 1.0, cpu_s=cpu) for number, cpu in enumerate([3.0, 8.0, 1.0])]
    peer = [Measurement(number, 1.0, cpu_s=cpu) for number, cpu in enumerate([2.0, 4.0, 1.0])]
    assert compare("ours", "peer", {"ours": ours, "peer": peer}).cpu == 1.5
    assert compare("ours", "peer", {"ours": rounds(1.0), "peer": rounds(1.0)}).cpu is None, "not measured"
    measured = {"ours": rounds(80, 90, 85), "peer": rounds(50, 50, 50), "bound": rounds(100, 100, 100)}
    comparison = compare("ours", "peer", measured, 3.0, bound="bound")
    assert (comparison.ratio, comparison.bound, comparison.limit, comparison.met) == (1.7, "bound", 2.0, False)
    assert compare("ours", "bound", measured, 0.9, bound="bound").limit is None, "it is the peer itself"
    assert compare("ours", "peer", measured, 0.9, bound="not there").limit is None


def test_rounds_that_failed_or_had_other_load_are_left_out_or_give_no_ratio_but_the_reason() -> None:
    failed = [*rounds(100, 100), Measurement(2, None, error="its process ended: killed")]
    comparison = compare("ours", "peer", {"ours": rounds(100, 100, 100), "peer": failed}, 1.0)
    assert comparison.ratio is comparison.met is None
    assert "peer failed in round 3: its process ended: killed" in comparison.reason
    assert "peer was not measured" in compare("ours", "peer", {"ours": rounds(1.0)}).reason
    busy = [*rounds(100, 100, foreign=0.4), Measurement(2, 100.0)]
    comparison = compare("ours", "peer", {"ours": rounds(100, 100, 100), "peer": busy}, 1.0)
    assert comparison.ratio is None and "2 of 3 rounds (up to 40%)" in comparison.reason
    assert compare("ours", "peer", {"ours": busy, "peer": busy}, most_foreign=0.5).ratio == 1.0, "a limit that is set"
    busy = [*rounds(100, 100), Measurement(2, 1.0, foreign=0.5)]
    comparison = compare("ours", "peer", {"ours": rounds(200, 200, 200), "peer": busy}, 1.0)
    assert comparison.ratio == 2.0
    assert comparison.reason == "1 of 3 rounds left out: other load"


def test_a_summary_takes_the_quiet_rounds_and_the_peak_of_the_memory() -> None:
    measured = [
        Measurement(0, 10.0, cpu_s=1.0, memory=5),
        Measurement(1, 30.0, cpu_s=3.0, memory=7),
        Measurement(2, 20.0, cpu_s=2.0, memory=6),
        Measurement(3, 1000.0, cpu_s=9.0, memory=6, foreign=0.9),
    ]
    seen, busy = summary(measured), summary(rounds(10, 20, 30, foreign=0.9))
    assert seen is not None and busy is not None and busy.rounds == 3, "where all are busy, all count"
    assert summary([Measurement(0, None, error="no")]) is None
    assert (seen.median, seen.least, seen.most, seen.cpu_s, seen.memory, seen.rounds) == (20.0, 10.0, 30.0, 2.0, 7, 3)


def test_every_case_compares_sides_that_exist_and_one_that_does_other_work_is_named() -> None:
    for case in CASES:
        assert set(case.sides) <= SIDES.keys()
        for target in case.targets:
            assert {target.ours, target.peer} <= set(case.sides), f"{case.key}: {target}"
            assert SIDES[target.ours].kind == "ours"
    same = {"image": "float32[64, 2]"}
    assert mismatches({"a": same, "b": dict(same)}) == []
    (sentence,) = mismatches({"a": same, "b": {"image": "uint8[64, 2]"}})
    assert sentence.startswith("b delivers")


def test_a_window_is_between_two_batches_and_long_enough_to_count_bursts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = itertools.repeat({"x": np.zeros(3, np.uint8)})
    told: list[str] = []
    taken = window(batches, 0.0, 0.01, lambda: told.append("warm"))
    assert told == ["warm"] and taken.seconds >= 0.01
    assert taken.elements == taken.bytes == 3 * taken.batches
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def bursts(pause: float) -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            now[0] += pause if number % 100 == 0 else 0.001
            yield {"x": np.zeros(1)}

    often, rarely = (window(bursts(pause), 0.0, 1.6, lambda: None) for pause in (0.1, 1.0))
    assert often.seconds == pytest.approx(1.6, abs=0.2)
    assert rarely.longest_wait_s == 1.0 and rarely.seconds >= 10.0
    assert rarely.elements / rarely.seconds == pytest.approx(100 / 1.099, rel=0.1)
    assert window(bursts(5.0), 0.0, 1.6, lambda: None).seconds < 21.0


def test_the_cpu_time_of_a_tree_holds_that_of_children_that_ended() -> None:
    before, machine = tree.cpu_seconds(os.getpid(), tree.processes()), sum(tree.machine_seconds())
    work = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert tree.cpu_seconds(os.getpid(), tree.processes()) - before >= 0.25
    assert sum(tree.machine_seconds()) > machine > 0
