"""Programs that end at random points, one after the other on one cluster, for so many runs or minutes.

    python -m tests.ray.endings [--runs 300] [--minutes M] [--seed 1] [--kinds sigterm kept ...]

Run K of seed S ends in the K-th of these ways, at a point that S + K draws.  Each must return its code, and leave no
process, actor, memory file or temporary file.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from tests.node_start import tried_twice
from tests.ray.conftest import FREE_PORTS
from tests.ray.test_endings import ENDINGS, must_end_well


def main() -> int:
    """Run them, name the failures, and sum up; return 1 if there was any."""
    parser = argparse.ArgumentParser(prog="python -m tests.ray.endings")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=ENDINGS, default=list(ENDINGS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endings-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = os.environ["RAY_TMPDIR"] = tempfile.tempdir = folder
        head = {"num_cpus": 4, **FREE_PORTS}
        cluster: Any = tried_twice(partial(Cluster, initialize_head=True, head_node_args=head))
        tried_twice(partial(cluster.add_node, num_cpus=4))
        ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
        try:
            return all_end_well(given.kinds, given.seed, given.runs, given.minutes * 60, cluster.address)
        finally:
            leave: Any = ray.shutdown
            leave()
            cluster.shutdown()


def all_end_well(kinds: list[str], seed: int, runs: int, seconds: float, address: str) -> int:
    """Run so many programs on a cluster, for no longer than so; return 1 if one does not end well."""
    began, done, failed = time.monotonic(), Counter[str](), 0
    for run in range(runs):
        if time.monotonic() - began > seconds:
            break
        kind = kinds[run % len(kinds)]
        with tempfile.TemporaryDirectory(prefix="program-") as folder:
            try:
                must_end_well(kind, seed + run, address, Path(folder))
            except AssertionError as error:
                failed += 1
                sys.stdout.write(f"{kind} {seed + run}: {error}\n")
        done[kind] += 1
        sys.stdout.flush()
    told = ", ".join(f"{times} {kind}" for kind, times in done.items())
    took = (time.monotonic() - began) / max(1, done.total())
    sys.stdout.write(f"{done.total()} programs from seed {seed} on ({told}): {failed} did not end well\n")
    sys.stdout.write(f"{took:.1f} s each, load {os.getloadavg()[0]:.0f}\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
