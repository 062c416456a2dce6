"""Ten thousand small files where few may be open at once, which holds for the Ray that the program starts too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray.conftest import ROOT
from tests.ray.long_form import some_later

MANY_FILES = """
import resource, sys
import pecan_ray as pecan

assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == int(sys.argv[1])
pipe = pecan.PecanPipeline(pecan.sources.TextLines(sys.argv[2]), name="many").batch(100)
with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
    print("lines:", len({line for batch in batches for line in batch["text"]}))
"""


@pytest.mark.parametrize("limit", some_later([256, 1024], 256))
def test_ten_thousand_files_are_read_where_few_may_be_open_at_once(tmp_path: Path, limit: int) -> None:
    (tmp_path / "data").mkdir()
    for number in range(10_000):
        (tmp_path / "data" / f"{number:05}.txt").write_text(f"line {number}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    command = f'ulimit -n {limit} && exec "{sys.executable}" -c "$0" {limit} "$1"'
    done = subprocess.run(
        ["bash", "-c", command, MANY_FILES, str(tmp_path / "data")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "lines: 10000" in done.stdout
