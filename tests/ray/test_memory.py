"""Memory: a job holds no more after many batches, and goes on where Ray kills its processes for memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.flat_memory import flat_batches, flat_pipeline, footprints
from pecan_ray.runtime import journaled_job

RING_BYTES = 1 << 20
MOST_GROWTH_BYTES = 2 * journaled_job.COMPACT_BYTES
"""Of a journal whose compacted form is small; beside it lies the job, with all its data here."""


@pytest.mark.slow
def test_trainer_workers_controller_and_journal_hold_no_more_after_many_batches(
    three_nodes: Any, no_actor_left: None, tmp_path: Path
) -> None:
    """Counts of objects, of which 300 are what a queue of small batches differs by, and of open files."""
    with flat_batches(flat_pipeline(tmp_path, RING_BYTES)) as batches:
        first, *others = list(footprints(batches, tmp_path, 4000, parts=4))[1:]
    assert {*first.files} == {"trainer", "worker", "controller"}
    for later in others:
        assert later.objects < first.objects + 300, "the trainer holds more"
        for name, files in later.files.items():
            assert files <= first.files[name] + 8, f"the {name} has more files open"
        assert later.journal_bytes < first.journal_bytes + MOST_GROWTH_BYTES, "the journal is not compacted"


@pytest.mark.slow
def test_a_worker_that_ray_kills_for_memory_is_named_so_in_one_line_and_nothing_is_lost() -> None:
    program = [sys.executable, "-m", "tests.ray.memory_program"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    *lost, seen = done.stdout.splitlines()
    assert seen == "each once"
    assert lost and all("Ray killed its process, since its node is short of memory" in line for line in lost)
