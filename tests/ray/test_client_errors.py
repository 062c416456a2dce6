"""Whatever goes wrong in a thread of the trainer's, the training loop is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ray.conftest import ROOT

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

TOO_FEW_FILES = """
import os, resource, sys
import numpy as np
import pecan_ray as pecan
from pecan_ray.errors import ClusterError

config = pecan.Config(cpus_per_worker=0.1, reorder="off")
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100_000)), name="files", config=config).batch(4)
batches = pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1))
next(batches)
used, most = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(sys.argv[1]), most))
try:
    batches.scale(local=6, remote=0)
    for _ in batches:
        pass
except ClusterError as error:
    print("told:", error, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
"""


@pytest.mark.slow
def test_too_few_open_files_are_told_to_the_loop(one_node: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": one_node.address}
    arguments = [sys.executable, "-c", TOO_FEW_FILES, "3"]
    done = subprocess.run(arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "told: what reads from" in done.stdout and "Too many open files" in done.stdout, done.stdout
    assert "raise the limit (`ulimit -n`)" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
