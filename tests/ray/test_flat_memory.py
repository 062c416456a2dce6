"""A job holds no more after many batches: what `benchmarks.flat_memory` measures for 100,000, in short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.flat_memory import flat_batches, flat_pipeline, footprints
from pecan_ray.runtime import journaled_job

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

RING_BYTES = 1 << 20
MOST_GROWTH_BYTES = 2 * journaled_job.COMPACT_BYTES
"""Of a journal whose compacted form is small; beside it lies the job, with all its data here."""


@pytest.mark.slow
def test_trainer_workers_controller_and_journal_hold_no_more_after_many_batches(tmp_path: Path) -> None:
    """Counts of objects, of which 300 are what a queue of small batches differs by, and of open files."""
    with flat_batches(flat_pipeline(tmp_path, RING_BYTES)) as batches:
        first, *others = list(footprints(batches, tmp_path, 4000, parts=4))[1:]
    assert {*first.files} == {"trainer", "worker", "controller"}
    for later in others:
        assert later.objects < first.objects + 300, "the trainer holds more"
        for name, files in later.files.items():
            assert files <= first.files[name] + 8, f"the {name} has more files open"
        assert later.journal_bytes < first.journal_bytes + MOST_GROWTH_BYTES, "the journal is not compacted"
