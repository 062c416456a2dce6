"""The comparison with peers: sides alternate and fail by name; medians, ratios, and rounds that are not fair."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.peers import plot, table, tree
from benchmarks.peers.cases import CASES, by_key
from benchmarks.peers.child import window
from benchmarks.peers.harness import ROOT, CpuClock, PeerSettings, run_case
from benchmarks.peers.judgement import Measurement, compare, mismatches, summary
from benchmarks.peers.sides import SIDES, Side

SHORT = PeerSettings(rounds=2, seconds=0.1, warm_s=0.02)


def test_sides_alternate_and_are_measured_plotted_and_told(tmp_path: Path) -> None:
    said: list[str] = []
    launched = replace(SHORT, launches=2)
    result = run_case(by_key("tiny"), ["threads", "memcpy"], launched, said.append)
    begun = [line.split(":")[1].strip() for line in said if line.startswith("round")]
    assert begun[:4] == ["threads", "memcpy", "memcpy", "threads"]
    assert begun[4] == "memcpy", "the order of the starts rotates as well"
    for measured in result.measured.values():
        assert [m.round for m in measured] == [0, 1, 2, 3], "a launch has rounds of its own"
        assert all(m.rate and m.rate > 0 and m.cpu_s >= 0 and m.error is None for m in measured)
    assert result.shapes["threads"] == {"image": "uint8[1, 1024]"}
    assert "threads" in table.case_table(result, 1.0)
    facts = table.as_json([result], launched, 1.0)
    plot.draw(facts, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_load_is_what_neither_the_side_nor_its_rivals_used_and_what_was_seen_too_late() -> None:
    before = CpuClock(wall=5.0, busy=10.0, idle=10.0, ours=4.0, side=1.0)
    after = CpuClock(wall=15.0, busy=25.0, idle=15.0, ours=13.0, side=7.0)  # of 20 s: 15 busy, 9 ours, 6 the side's
    assert after.shares_since(before, seconds=10.0) == pytest.approx((0.3, 0.15))
    half = CpuClock(wall=10.0, busy=20.0, idle=10.0, ours=14.0, side=11.0)
    assert half.shares_since(before, seconds=10.0) == pytest.approx((0.5, 0.0))
    assert before.shares_since(before, seconds=10.0) == (1.0, 0.0)


def test_sides_that_cannot_start_or_end_in_a_round_cost_the_others_nothing_and_one_has_another_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with open(tmp_path / "benchmarks/peers/sides/threads.py", "a") as code:
        code.write('\nNOTE = "from the other checkout"\n')
        code.write("def few_batches(recipe):\n    return itertools.islice(memcpy(recipe), 3)\n")
    for name, side in {
        "broken": Side("threads", "no_such_function"),
        "absent": Side("threads", needs=("a_package_that_nobody_has",)),
        "short": Side("threads", "few_batches", checkout=str(tmp_path)),
        "before": replace(SIDES["threads"], checkout=str(tmp_path)),
    }.items():
        monkeypatch.setitem(SIDES, name, side)
    result = run_case(by_key("tiny"), ["broken", "absent", "short", "threads", "before"], SHORT, lambda _line: None)
    assert "no_such_function" in result.missing["broken"]
    assert result.missing["absent"] == "a_package_that_nobody_has is not installed"
    text = table.case_table(result, 1.0)
    assert "left out: broken" in text and "left out: absent" in text
    (measured,) = result.measured["short"]
    assert measured.rate is None and measured.error is not None and "StopIteration" in measured.error
    assert {name: len(rounds) for name, rounds in result.measured.items()} == {"short": 1, "threads": 2, "before": 2}
    assert result.notes.get("threads") != result.notes["before"] == "from the other checkout"


LEAVING = """
import os, signal, sys
from pathlib import Path
from benchmarks.peers.cases import by_key
from benchmarks.peers.harness import PeerSettings, RunningSide
side = RunningSide("threads", by_key("tiny"), PeerSettings(), Path(sys.argv[1]))
side.response(300.0)
side.freeze()
print(side.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


def test_a_side_that_is_stopped_ends_with_the_harness(tmp_path: Path) -> None:
    program = [sys.executable, "-c", LEAVING, str(tmp_path / "log")]
    harness = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    assert harness.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(harness.stdout)).wait(300.0)


def rounds(*rates: float | None, foreign: float = 0.0) -> list[Measurement]:
    return [Measurement(number, rate, foreign=foreign) for number, rate in enumerate(rates)]


def test_ratios_of_rates_of_cpu_time_and_to_a_bound_are_medians_of_those_within_the_rounds() -> None:
    # What happens to the machine from one round to the next happens to both.
    comparison = compare("ours", "peer", {"ours": rounds(400, 100, 75), "peer": rounds(200, 100, 25)}, 1.5)
    assert (comparison.ratio, comparison.least, comparison.most, comparison.met) == (2.0, 1.0, 3.0, True)
    assert comparison.cpu is None
    ours, peer = ([Measurement(number, 1.0, cpu_s=cpu) for number, cpu in enumerate(each)] for each in ((3, 8), (2, 4)))
    comparison = compare("ours", "peer", {"ours": ours, "peer": peer})
    assert comparison.cpu == 1.75 and comparison.met is None, "without a target"
    measured = {"ours": rounds(80, 90, 85), "peer": rounds(50, 50, 50), "bound": rounds(100, 100, 100)}
    comparison = compare("ours", "peer", measured, 3.0, bound="bound")
    assert (comparison.ratio, comparison.bound, comparison.limit, comparison.met) == (1.7, "bound", 2.0, False)
    assert compare("ours", "bound", measured, 0.9, bound="bound").limit is None, "it is the peer itself"


@pytest.mark.parametrize(
    ("peer", "ratio", "reason"),
    [
        ([*rounds(100, 100), Measurement(2, None, error="killed")], None, "peer failed in round 3: killed"),
        ([], None, "peer was not measured"),
        ([*rounds(100, 100, foreign=0.4), Measurement(2, 100.0)], None, "2 of 3 rounds (up to 40%)"),
        ([*rounds(100, 100), Measurement(2, 1.0, foreign=0.5)], 2.0, "1 of 3 rounds left out: other load"),
    ],
)
def test_rounds_that_failed_or_had_other_load_are_left_out_or_give_no_ratio_but_the_reason(
    peer: list[Measurement], ratio: float | None, reason: str
) -> None:
    comparison = compare("ours", "peer", {"ours": rounds(200, 200, 200), **({"peer": peer} if peer else {})}, 1.0)
    assert comparison.ratio == ratio and reason in comparison.reason


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


def test_a_window_is_long_enough_to_count_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def bursts(pause: float) -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            now[0] += pause if number % 100 == 0 else 0.001
            yield {"x": np.zeros(3, np.uint8)}

    often, rarely = (window(bursts(pause), 0.0, 1.6, lambda: None) for pause in (0.1, 1.0))
    assert often.seconds == pytest.approx(1.6, abs=0.2) and often.elements == often.bytes == 3 * often.batches
    assert rarely.longest_wait_s == 1.0 and rarely.seconds >= 10.0
    assert rarely.batches / rarely.seconds == pytest.approx(100 / 1.099, rel=0.1)
    assert window(bursts(5.0), 0.0, 1.6, lambda: None).seconds < 21.0


def test_the_cpu_time_of_a_tree_holds_that_of_children_that_ended() -> None:
    before = tree.cpu_seconds(os.getpid(), tree.processes())
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert tree.cpu_seconds(os.getpid(), tree.processes()) - before >= 0.25
