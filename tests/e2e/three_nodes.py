"""A program: a Ray cluster of three nodes; prints the job server's address, and ends with its standard input."""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster


def main() -> None:
    # Free ports, where Ray's own may be another Ray's: without its port the agent of a node takes no jobs.
    ports = {"dashboard_port": 0, "dashboard_agent_listen_port": 0}
    head = {"num_cpus": 2, "include_dashboard": True, "object_store_memory": 200 << 20, **ports}
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
