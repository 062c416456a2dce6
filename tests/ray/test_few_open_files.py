"""Where a program may have few files open: many batches are held, and what is too much is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ray.user_programs import run_program

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

HELD_BATCHES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
import pecan_ray as pecan

ROWS, SIDE = 8000, 1000
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="held")
pipe = pipe.map(lambda i: np.full(SIDE, i), on="i").batch(8)
with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
    held = list(batches)
assert len(held) == ROWS // 8 and all(batch["i"].base is not None for batch in held), "they are views"
assert all((batch["i"] == batch["i"][:, :1]).all() for batch in held)
print("lines:", len({int(row[0]) for batch in held for row in batch["i"]}))
"""

TOO_FEW = """
import os, resource
import numpy as np
import pecan_ray as pecan
from pecan_ray.errors import ClusterError

config = pecan.Config(cpus_per_worker=0.1, reorder="off")
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100_000)), name="files", config=config).batch(4)
batches = pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1))
next(batches)
used, most = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, most))
try:
    batches.scale(local=6, remote=0)
    for _ in batches:
        pass
except ClusterError as error:
    print("told:", error, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
"""


def test_a_thousand_batches_are_held(one_node: Any, tmp_path: Path) -> None:
    done = run_program(HELD_BATCHES, tmp_path, one_node.address)
    assert "lines: 8000" in done.stdout and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_what_cannot_be_opened_is_told_to_the_loop(one_node: Any, tmp_path: Path) -> None:
    told = run_program(TOO_FEW, tmp_path, one_node.address).stdout
    assert "told: what reads from" in told and "Too many open files" in told
    assert "raise the limit (`ulimit -n`)" in told
