"""A node that runs out of memory: Ray kills processes, the job goes on, and says why they were lost."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_worker_that_ray_kills_for_memory_is_named_so_in_one_line_and_nothing_is_lost() -> None:
    program = [sys.executable, "-m", "tests.ray.memory_program"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    *lost, seen = done.stdout.splitlines()
    assert seen == "each once"
    assert lost and all("Ray killed its process, since its node is short of memory" in line for line in lost)
