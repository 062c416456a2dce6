"""What `pecan doctor` says of a machine, and `pecan top` of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.cli import main
from pecan_ray.errors import ClusterError
from pecan_ray.job.cluster_io import SharedIo
from pecan_ray.job.job_views import LiveJob, StorageShare
from pecan_ray.job.speed import JobSpeed
from pecan_ray.observe.diagnostics import (
    ROWS,
    check_transport,
    cpus,
    descriptors,
    free_bytes,
    shared_memory,
    temporary_folder,
)
from pecan_ray.observe.status_command import io_lines
from pecan_ray.observe.top_command import job_overview_lines
from pecan_ray.observe.top_table import COLUMNS, top_lines
from pecan_ray.options import TransportChoice
from pecan_ray.plan.windows import Deployment

GIB = 1 << 30


def test_what_is_missing_or_broken_is_told_with_what_to_do(tmp_path: Path) -> None:
    for finding, suggestion in (
        (cpus(2, 8), ""),
        (cpus(1, 8), "two or more"),
        (shared_memory(True, "memory files are available", GIB), ""),
        (shared_memory(False, "memory files need Linux", GIB), "object store"),
        (shared_memory(True, "", 64 << 20), "--shm-size"),
        (descriptors(1024), ""),
        (descriptors(-1), ""),
        (descriptors(256), "ulimit -n"),
        (temporary_folder(tmp_path, 2 * GIB), ""),
        (temporary_folder(tmp_path, 1 << 20), "Make room"),
        (temporary_folder(tmp_path / "none", None), "TMPDIR"),
    ):
        assert suggestion in finding.suggestion and str(finding).startswith("ok ") == (not suggestion)
    assert "there is no /dev/shm" in str(shared_memory(True, "", None))
    assert free_bytes(tmp_path / "none") is None

    def broken(transport: TransportChoice) -> tuple[int, Sequence[str]]:
        raise ClusterError("its port cannot be reached.")

    assert not check_transport("ring", lambda _: (ROWS, ["ring: one node"])).suggestion
    assert "please report" in check_transport("ring", lambda _: (ROWS - 1, ["ring"])).suggestion
    assert str(check_transport("flight", broken)).startswith(
        "wrong transport flight: its port cannot be reached. Until then"
    )


def test_the_command_looks_at_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--without-ray"])
    lines = capsys.readouterr().out.splitlines()
    found = [line[6:].partition(":")[0] for line in lines]
    assert found[:5] == ["versions", "CPUs", "shared memory", "open files", "temporary files"] and len(lines) == 6
    assert status == int(any(line.startswith("wrong") for line in lines))


SPEED = JobSpeed(1200.0, 0.25, 60e6, 0.5, 80e6, 4e9)
BUSY = LiveJob(
    *("busy", "pipe", 60.0, 2),
    running=Deployment(2, 1),
    target=Deployment(1, 2),
    dollars=1.5,
    speed=SPEED,
    storage=StorageShare(40e6, 2 * 10**9),
)
NEW = LiveJob("new", "pipe", 1.0, target=Deployment(4, 0))


def test_a_row_tells_what_a_job_does_and_may_use() -> None:
    head, row = (line.split("  ") for line in top_lines([BUSY]))
    shown = {name.strip(): cell.strip() for name, cell in zip(filter(None, head), filter(None, row), strict=True)}
    assert list(shown.values()) == (
        ["busy", "2+1", "2", "1,200", "25%", "60.0", "80.0", "2", "50%", "30.0", "40.0", "0.02", "1.5000"]
    )


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
    assert io_lines(SharedIo(), 0) == []
    assert "none has said" in io_lines(SharedIo(), 1)[0]
    (line,) = io_lines(SharedIo(2e8, 10**12, "max_min"), 2)
    assert line == "service: divides 200 MB/s of object stores and 1,000 GB of cache among 2 jobs, policy max_min"


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_lines_are_no_longer_than_the_terminal_is_wide(width: int) -> None:
    lines = top_lines([replace(BUSY, job="a-name-" * 30), NEW], width)
    assert all(len(line) <= width for line in lines)
    assert width < 150 or "..  " in lines[1]


def test_an_interval_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--every", "nan"]) == 2
    assert "--every must be" in capsys.readouterr().err
