"""What to reserve for a worker, by what workers have taken."""

from __future__ import annotations

import numpy as np
import pytest

from pecan_ray.job.worker_size import KNOWN_S, cpus_at_work, size_advice
from pecan_ray.observe.report import Report
from pecan_ray.observe.report_staff import WorkerReport
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.runtime.host_use import peak_memory


def taken(
    cpus: float, at_work_s: float = 100.0, blocked_s: float = 40.0, in_processes: tuple[str, ...] = ()
) -> StageSeconds:
    """Of workers that were held back for some of their time, in which they took nothing."""
    return StageSeconds(
        observed_s=at_work_s + blocked_s,
        cpu_s=cpus * at_work_s,
        blocked_s=blocked_s,
        threads_s=at_work_s,
        in_processes=in_processes,
    )


@pytest.mark.parametrize(
    ("cpus", "reserved", "wanted"),
    [
        (0.98, 1.0, None),
        (1.04, 1.0, None),
        (0.8, 1.0, None),
        (0.4, 1.0, "0.5"),
        (0.02, 1.0, "0.25"),
        (1.6, 1.0, "1.75"),
        (3.9, 1.0, "4"),
        (2.9, 4.0, "3"),
        (0.1, 0.25, None),
        (0.4, 0.0, None),
    ],
)
def test_cpus_that_fit_are_advised_where_others_are_reserved(cpus: float, reserved: float, wanted: str | None) -> None:
    advice = size_advice(taken(cpus), reserved)
    assert (advice == "") == (wanted is None)
    if wanted is not None:
        assert f"takes {cpus:.2f} CPUs, and {reserved:g} are reserved" in advice
        assert f"Config(cpus_per_worker={wanted})" in advice
        assert ("more workers fit on a node" in advice) == (float(wanted) < reserved)


def test_nothing_is_advised_before_cpus_are_known_and_where_functions_have_processes_of_their_own() -> None:
    assert cpus_at_work(taken(0.4)) == pytest.approx(0.4)
    assert cpus_at_work(taken(0.4, KNOWN_S / 2)) == 0.0
    assert cpus_at_work(taken(0.4, in_processes=("decode",))) == 0.0
    for stages in (taken(0.4, KNOWN_S / 2), taken(0.4, in_processes=("decode",)), StageSeconds()):
        assert size_advice(stages, 1.0) == ""


def test_the_report_says_what_workers_have_taken_and_which_size_would_fit() -> None:
    worker = WorkerReport("remote", 400, 100, 2, stages=taken(0.4), peak_memory_bytes=312_000_000)
    text = str(Report("job", 3.5, 100, 400, workers={"remote-0": worker}, cpus_per_worker=1.0))
    assert "2 threads, 0.40 CPUs, 312 MB of memory at most" in text
    assert text.count("Config(cpus_per_worker=0.5)") == 1
    assert "cpus_per_worker" not in str(Report("job", 3.5, 100, 400, workers={"remote-0": worker}))


def test_the_most_memory_that_a_process_has_had_is_measured() -> None:
    block = np.ones(64 << 20, np.uint8)
    most = peak_memory()
    assert most > block.nbytes
    del block
    # The kernel adds up what threads have counted now and then, so it may be some pages less.
    assert peak_memory() > most - (1 << 20)
