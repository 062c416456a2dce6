"""The table of `pecan top`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.cli import main
from pecan_ray.job.cluster_io import SharedIo
from pecan_ray.job.job_views import LiveJob
from pecan_ray.job.speed import JobSpeed
from pecan_ray.observe.status_command import io_lines
from pecan_ray.observe.top_command import job_overview_lines
from pecan_ray.observe.top_table import COLUMNS, top_lines
from pecan_ray.plan.windows import Deployment

SPEED = JobSpeed(1200.0, 0.25, 60e6, 0.5, 80e6, 4e9)
SET = "s3://bucket/set"
BUSY = LiveJob(
    *("busy", "pipe", 60.0, 2),
    running=Deployment(2, 1),
    target=Deployment(1, 2),
    dollars=1.5,
    speed=SPEED,
    remote_io=40e6,
    cache_limits=((SET, 2 * 10**9), ("s3://bucket/x", 5)),
    datasets=(SET,),
)
NEW = LiveJob("new", "pipe", 1.0, target=Deployment(4, 0))


def test_a_row_tells_what_a_job_does_and_may_use() -> None:
    head, row = (line.split("  ") for line in top_lines([BUSY]))
    shown = dict(zip((one.strip() for one in head if one), (one.strip() for one in row if one), strict=True))
    assert shown == {
        "job": "busy",
        "workers": "2+1",
        "epoch": "2",
        "rows/s": "1,200",
        "waiting": "25%",
        "speed MB/s": "60.0",
        "ideal MB/s": "80.0",
        "cache GB": "2",
        "hits": "50%",
        "IO MB/s": "30.0",
        "quota MB/s": "40.0",
        "efficiency 1/s": "0.02",
        "$": "1.5000",
    }


def test_unknown_columns_are_left_out_the_fastest_comes_first_and_silent_jobs_are_named() -> None:
    head, *rows = top_lines([NEW, BUSY, replace(BUSY, job="also")])
    assert [row.split()[0] for row in rows] == ["also", "busy", "new"]
    assert all(name in head for name in COLUMNS)
    (head, row) = top_lines([NEW])
    assert head.split() == ["job", "workers", "epoch", "rows/s", "waiting"]
    assert "0+0 of 4" in row
    lines = job_overview_lines([BUSY], ["gone"], None)
    assert lines[0] == "1 job, 3 workers, 30.0 MB/s of object stores, $1.5000 so far"
    assert lines[-1] == "silent: gone"
    assert job_overview_lines([], [], None) == ["0 jobs, 0 workers, 0.0 MB/s of object stores"]
    assert io_lines(SharedIo(), 0) == []
    assert "none has said" in io_lines(SharedIo(), 1)[0]
    (line,) = io_lines(SharedIo(2e8, 10**12, "max_min"), 2)
    assert line == "  divides 200 MB/s of object stores and 1,000 GB of cache among 2 jobs, policy max_min"


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_lines_are_no_longer_than_the_terminal_is_wide(width: int) -> None:
    lines = top_lines([replace(BUSY, job="a-name-" * 30), NEW], width)
    assert all(len(line) <= width for line in lines)
    assert width < 150 or "..  " in lines[1]


def test_an_interval_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--every", "nan"]) == 2
    assert "--every must be" in capsys.readouterr().err
