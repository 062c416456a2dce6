"""A program: a Ray cluster of three nodes; prints the job server's address, and ends with its standard input."""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster


def main() -> None:
    """Run the cluster."""
    head = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": 0, "object_store_memory": 200 << 20}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2, object_store_memory=200 << 20)
        cluster.wait_for_nodes()
        sys.stdout.write(f"address http://{cluster.head_node.webui_url}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
