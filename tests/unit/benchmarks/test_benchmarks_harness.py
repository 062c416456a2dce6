"""The harness on sides that start within a second: they alternate, are measured, and fail by name."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import plot, table
from benchmarks.peers.cases import by_key
from benchmarks.peers.harness import ROOT, CpuClock, PeerSettings, run_case
from benchmarks.peers.sides import SIDES, Side

SHORT = PeerSettings(rounds=2, seconds=0.1, warm_s=0.02)


def test_sides_alternate_and_are_measured_plotted_and_told(tmp_path: Path) -> None:
    said: list[str] = []
    launched = replace(SHORT, launches=2)
    result = run_case(by_key("tiny"), ["threads", "memcpy"], launched, said.append)
    begun = [line.split(":")[1].strip() for line in said if line.startswith("round")]
    assert begun[:4] == ["threads", "memcpy", "memcpy", "threads"]
    assert begun[4] == "memcpy", "the order of the starts rotates as well"
    for name in ("threads", "memcpy"):
        assert [m.round for m in result.measured[name]] == [0, 1, 2, 3], "a launch has rounds of its own"
        assert all(m.rate and m.rate > 0 and m.cpu_s >= 0 and m.error is None for m in result.measured[name])
    assert result.shapes["threads"] == {"image": "uint8[1, 1024]"}
    assert "threads" in table.case_table(result, 1.0)
    facts = table.as_json([result], launched, 1.0)
    plot.draw(facts, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_load_is_what_neither_the_side_nor_its_rivals_used_and_what_was_seen_too_late() -> None:
    before = CpuClock(wall=5.0, busy=10.0, idle=10.0, ours=4.0, side=1.0)
    after = CpuClock(wall=15.0, busy=25.0, idle=15.0, ours=13.0, side=7.0)  # of 20 s: 15 busy, 9 ours, 6 the side's
    assert after.shares_since(before, seconds=10.0) == pytest.approx((0.3, 0.15))
    before = CpuClock(wall=5.0, busy=10.0, idle=10.0, ours=4.0, side=1.0)
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
    for name, side in {
        "broken": Side("threads", "no_such_function"),
        "absent": Side("threads", needs=("a_package_that_nobody_has",)),
        "short": Side("tests.unit.benchmarks.benchmark_plants", "few_batches"),
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
os.kill(os.getpid(), getattr(signal, sys.argv[2]))
signal.pause()
"""


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_side_that_is_stopped_ends_with_the_harness(tmp_path: Path, how: str) -> None:
    program = [sys.executable, "-c", LEAVING, str(tmp_path / "log"), how]
    harness = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    assert harness.returncode == -getattr(signal, how)
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(harness.stdout)).wait(300.0)
