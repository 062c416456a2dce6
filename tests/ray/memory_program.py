"""A job whose worker keeps what it makes, on a node of Ray's that may use a little more memory than it does now."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from tests.ray.conftest import FREE_PORTS

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
    """Write what the job's story tells of lost workers, and how many elements came how often."""
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


if __name__ == "__main__":
    main()
