"""Large `Arrays` and `Items` are put once on each node, and outlive their controller's process."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import pecan_ray as pecan
from tests.ray.conftest import living_actors
from tests.ray.pipelines import TWO, times
from tests.ray.test_journal import kill_controller
from tests.ray.workers import ONE_BY_ONE, living_worker, process_of

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 400
LARGE = 1 << 27
"""Bytes of an array that no worker may hold itself."""
MAX_OWN_BYTES = 3 * LARGE
"""Memory of a worker's process of its own: libraries take some of it, and a plan with the array would take more."""


def one_by_one(batches: Any) -> Iterator[int]:
    for batch in batches:
        yield from batch["i"].tolist()


def test_workers_map_arrays_and_go_on_without_their_controller() -> None:
    large = np.zeros((ROWS, LARGE // ROWS // 8))
    source = pecan.sources.Arrays(i=np.arange(ROWS), large=large)
    pipe = pecan.PecanPipeline(source, name="shared").map(lambda element: {"i": element["i"]}).batch(2)
    got: list[int] = []
    with pipe.iter_batches(job="shared", workers=TWO, **ONE_BY_ONE) as batches:
        for i in one_by_one(batches):
            got.append(i)
            if len(got) == ROWS // 4:
                workers = [name for name in living_actors() if ":local-" in name or ":remote-" in name]
                held = [psutil.Process(process_of(name)).memory_full_info().uss for name in workers]
                assert len(held) == 2 and max(held) < MAX_OWN_BYTES
                pid = process_of(living_worker("local", but=[]))
                kill_controller("shared")
                os.kill(pid, signal.SIGKILL)
    assert Counter(got) == times(ROWS)
