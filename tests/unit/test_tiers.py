"""What `make check` runs is told by what a file of tests needs."""

from __future__ import annotations

from pathlib import Path

from tests.tiers import ROOT, is_quick, needs

UNIT = ROOT / "tests" / "unit"


NEEDED: dict[str, set[str]] = {
    "import json, threading\nimport numpy as np": set(),
    "def test_it() -> None:\n    import torch.nn": {"torch"},
    "from http.server import HTTPServer": {"http.server"},
    "tf = pytest.importorskip('tensorflow')": {"tensorflow"},
    "pipe = PecanPipeline(source, engine='tensorflow')": {"tensorflow"},
    "pipe.map(fn, processes=True)": {"multiprocessing"},
    "child = os.fork()": {"multiprocessing"},
    "data = pipe.to_torch(debug=True)": {"torch"},
    "def test_it(s3_endpoint: str) -> None: ...": {"http.server"},
    "from tests.unit.engines.tensorflow_rig import run": {"tensorflow"},
    "from tests import flaky_http": {"http.server"},
    "text = 'of tensorflow alone'": set(),
}


def test_a_file_needs_what_it_or_what_it_imports_names(tmp_path: Path) -> None:
    for number, (text, needed) in enumerate(NEEDED.items()):
        file = tmp_path / f"test_{number}.py"
        file.write_text(text)
        assert needs(file) == needed and is_quick(file) == (not needed), text


def test_decisions_and_the_job_are_tested_in_make_check() -> None:
    quick = {file.name for file in UNIT.rglob("test_*.py") if is_quick(file)}
    assert {"test_ledger.py", "test_placement_control.py", "test_cache_eviction.py", "test_plan_shape.py"} <= quick
    assert not {"test_storage_s3.py", "test_tensorflow_engine.py", "test_ring.py", "test_python_processes.py"} & quick
