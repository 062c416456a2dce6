"""Memory: a job holds no more after many batches, and goes on where Ray kills its processes for memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from benchmarks.flat_memory import flat_batches, flat_pipeline, footprints
from pecan_ray.runtime import journaled_job
from tests.ray.conftest import FREE_PORTS

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


KEPT_BYTES = 50_000_000
ROOM = 1_500_000_000
FIRST = 100
"""Elements before the first one that is kept: the job is under way then."""
kept: list[Any] = []


def keeps(i: Any) -> Any:
    if i > FIRST:
        kept.append(np.ones(KEPT_BYTES // 8))
        time.sleep(0.02)  # so that the memory monitor, which looks four times a second, is not overtaken
    return i


def main() -> None:
    """Write what the story of a job tells of lost workers, on a node that may use little more memory than it does now.

    Its worker keeps what it makes.
    """
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    whole, left = (int(facts[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    most = {"RAY_memory_usage_threshold": f"{(whole - left + ROOM) / whole:.4f}"}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "env_vars": most, **FREE_PORTS})
    ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
    config = pecan.Config(reorder="off", progress=False)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(160)), name="leaky", config=config)
    with pipe.map(keeps, on="i").batch(4).iter_batches(workers=pecan.Workers(local=1)) as batches:
        seen = sorted(int(i) for batch in batches for i in batch["i"])
        for event in batches.report().events:
            if "is lost" in event.text:
                sys.stdout.write(f"{event.text}\n")
    sys.stdout.write("each once\n" if seen == list(range(160)) else f"{seen}\n")
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_a_worker_that_ray_kills_for_memory_is_named_so_in_one_line_and_nothing_is_lost() -> None:
    program = [sys.executable, "-m", "tests.ray.test_memory"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    *lost, seen = done.stdout.splitlines()
    assert seen == "each once"
    assert lost and all("Ray killed its process, since its node is short of memory" in line for line in lost)


if __name__ == "__main__":
    main()
