"""What `make check` runs is told by what a file of tests needs."""

from __future__ import annotations

from tests.tiers import ROOT, is_quick

UNIT = ROOT / "tests" / "unit"


def test_decisions_and_the_job_are_tested_in_make_check() -> None:
    quick = {file.name for file in UNIT.rglob("test_*.py") if is_quick(file)}
    assert {"test_ledger.py", "test_placement_control.py", "test_cache_eviction.py", "test_plan_shape.py"} <= quick
    assert not {"test_storage_s3.py", "test_tensorflow_engine.py", "test_ring.py", "test_python_processes.py"} & quick
