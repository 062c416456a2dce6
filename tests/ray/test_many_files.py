"""Ten thousand small files, and a thousand held batches, where few may be open at once: for the program and its Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ray.conftest import ROOT

MANY_FILES = """
import resource, sys
import pecan_ray as pecan

assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == int(sys.argv[1])
pipe = pecan.PecanPipeline(pecan.sources.TextLines(sys.argv[2]), name="many").batch(100)
with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
    print("lines:", len({line for batch in batches for line in batch["text"]}))
"""


HELD_BATCHES = """
import resource, sys
import numpy as np
import pecan_ray as pecan

assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == int(sys.argv[1])
ROWS, SIDE = 8000, 1000
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="held")
pipe = pipe.map(lambda i: np.full(SIDE, i), on="i").batch(8)
with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
    held = list(batches)
assert len(held) == ROWS // 8 and all(batch["i"].base is not None for batch in held), "they are views"
assert all((batch["i"] == batch["i"][:, :1]).all() for batch in held)
print("lines:", len({int(row[0]) for batch in held for row in batch["i"]}))
"""


def lines_of(program: str, limit: int, folder: Path, *arguments: str, address: str = "local") -> str:
    """Run a program that may have so many files open, with a Ray of its own or one that runs; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    command = f'ulimit -n {limit} && exec "{sys.executable}" -c "$0" {limit} "$@"'
    done = subprocess.run(
        ["bash", "-c", command, program, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_ten_thousand_files_are_read_where_few_may_be_open_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(10_000):
        (tmp_path / "data" / f"{number:05}.txt").write_text(f"line {number}\n")
    assert "lines: 10000" in lines_of(MANY_FILES, 256, tmp_path, str(tmp_path / "data"))


def test_a_trainer_that_may_open_few_files_holds_a_thousand_batches(one_node: Any, tmp_path: Path) -> None:
    assert "lines: 8000" in lines_of(HELD_BATCHES, 256, tmp_path, address=one_node.address)
