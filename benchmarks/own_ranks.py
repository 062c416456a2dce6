"""Ranks on two nodes: how many bytes come from workers of a rank's own node, and how long an epoch takes.

    python -m benchmarks.own_ranks [--ranks 4] [--workers 4] [--element-ms 8] [--elements 5120] [--batch 64]
                                   [--step 0.0] [--epochs 2] [--slow 1.0] [--json FILE]

A Ray cluster of two raylets on this machine; the ranks are tasks, half of them on each node, and so are the workers.
An element sleeps, so that a machine of two CPUs can run all workers.  Its function notes the node that it runs on, and
each rank compares that with its own.  The ideal of an epoch is its elements' seconds over the number of workers; it is
measured from a rank's first batch on, so that starts do not count.  `--slow` makes the elements on the second node so
many times slower: then its ranks get help from the other node.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan

ROW_BYTES = 4096
NODES = 2


def pipeline(asked: argparse.Namespace, slow_node: str) -> pecan.PecanPipeline:
    """Return a pipeline whose elements sleep, and name the node that they were made on."""
    element_s, slow = asked.element_ms / 1000, asked.slow

    def made_here(row: dict[str, Any]) -> dict[str, Any]:
        node = ray.get_runtime_context().get_node_id()
        time.sleep(element_s * (slow if node == slow_node else 1.0))
        return {"x": np.zeros(ROW_BYTES, np.uint8), "row": row["row"], "node": np.frombuffer(bytes.fromhex(node), "u1")}

    source = pecan.sources.Arrays(row=np.arange(asked.elements))
    config = pecan.Config(threads_per_worker=1, reorder="off", order_folder="")
    return pecan.PecanPipeline(source, name="own-ranks", config=config).map(made_here).batch(asked.batch)


@ray.remote(num_cpus=0)
def loop(rank: int, asked: argparse.Namespace, slow_node: str, job: str) -> dict[str, Any]:
    """Be a rank; tell of its bytes by the node that made them, its rows, and when its epochs began and ended."""
    mine = np.frombuffer(bytes.fromhex(ray.get_runtime_context().get_node_id()), "u1")
    options: dict[str, Any] = {"workers": pecan.Workers(local=asked.workers), "epochs": asked.epochs}
    own, others, rows = 0, 0, []
    per_epoch = asked.elements // asked.batch // asked.ranks
    with pipeline(asked, slow_node).iter_batches(rank=rank, world_size=asked.ranks, job=job, **options) as batches:
        ends = []
        for number, batch in enumerate(batches):
            nbytes = sum(column.nbytes for column in batch.values())
            here = bool((batch["node"] == mine).all())
            own, others = own + nbytes * here, others + nbytes * (not here)
            rows.append(int(batch["row"][0]))
            if number == 0 or (number + 1) % per_epoch == 0:
                ends.append(time.time())
            time.sleep(asked.step)
        report = str(batches.explain()) if rank == 0 else ""
    return {"own": own, "others": others, "first_rows": rows, "ends": ends, "explain": report}


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Run one job; return what its ranks have told, put together."""
    listed: Any = ray.nodes
    nodes = [node["NodeID"] for node in listed()]
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    job = f"own-ranks-{time.monotonic_ns()}"
    ranks = [
        loop.options(scheduling_strategy=strategy(nodes[rank * NODES // asked.ranks], soft=False)).remote(
            rank, asked, nodes[-1], job
        )
        for rank in range(asked.ranks)
    ]
    found = ray.get(ranks)
    own, others = (sum(one[name] for one in found) for name in ("own", "others"))
    ideal_s = asked.elements * asked.element_ms / 1000 / asked.workers
    began, *ends = (max(one["ends"][place] for one in found) for place in range(len(found[0]["ends"])))
    in_order = all(
        one["first_rows"]
        == [
            row
            for _ in range(asked.epochs)
            for row in range(rank * asked.batch, asked.elements, asked.ranks * asked.batch)
        ]
        for rank, one in enumerate(found)
    )
    return {
        "own_share": own / (own + others),
        "epochs_s": [end - before for before, end in zip([began, *ends], ends, strict=False)],
        "ideal_s": ideal_s,
        "in_order": in_order,
        "explain": found[0]["explain"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--element-ms", type=float, default=8.0)
    parser.add_argument("--elements", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--json")
    asked = parser.parse_args()
    if asked.elements % (asked.batch * asked.ranks):
        parser.error("--elements must be a multiple of a batch of each rank")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "include_dashboard": False})
    cluster.add_node(num_cpus=16)
    ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
    try:
        cluster.wait_for_nodes()
        found = measure(asked)
    finally:
        leave: Any = ray.shutdown
        leave()
        end: Any = cluster.shutdown
        end()
    seconds = ", ".join(f"{one:.2f}" for one in found["epochs_s"])
    print(
        f"{found['own_share']:.3f} of the bytes from workers of the rank's node; epochs took {seconds} s, "
        f"ideal {found['ideal_s']:.2f}; in order: {found['in_order']}"
    )
    if asked.json:
        Path(asked.json).write_text(json.dumps(vars(asked) | found, indent=1))


if __name__ == "__main__":
    main()
