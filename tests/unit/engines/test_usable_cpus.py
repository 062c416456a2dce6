"""CPUs of containers: quotas of cgroups of both versions, at any level."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pecan_ray.engines.usable_cpus import usable_cpus, whole_cpus

HERE = len(os.sched_getaffinity(0))


def cpus_of(folder: Path, own: str, files: dict[str, str]) -> float:
    """Return the CPUs of a process whose cgroups have these files."""
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return usable_cpus(folder / "cgroup", folder / "own")


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        pytest.param("0::/", {"cpu.max": "50000 100000\n"}, 0.5, id="a container of version 2"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, HERE, id="no quota"),
        pytest.param(
            "0::/pod/job",
            {"pod/cpu.max": "25000 100000", "pod/job/cpu.max": "75000 100000"},
            0.25,
            id="the least of all levels",
        ),
        pytest.param(
            "5:memory:/m\n4:cpu,cpuacct:/docker/a\n0::/x",
            {"cpu,cpuacct/docker/a/cpu.cfs_quota_us": "40000", "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000"},
            0.4,
            id="version 1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/a",
            {"cpu,cpuacct/cpu.cfs_quota_us": "30000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.3,
            id="a container of version 1 that sees its own cgroup as the top",
        ),
        pytest.param(
            "4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, HERE, id="version 1, no quota"
        ),
        pytest.param("", {}, HERE, id="no cgroups"),
    ],
)
def test_the_least_quota_counts(tmp_path: Path, own: str, files: dict[str, str], cpus: float) -> None:
    assert cpus_of(tmp_path, own, files) == pytest.approx(cpus)


def test_there_is_always_a_thread() -> None:
    assert 1 <= whole_cpus() <= HERE
