"""What Ray tells of metrics."""

from __future__ import annotations

import contextlib
import urllib.request
from typing import Any

import ray


def scraped() -> str:
    """Text of the Prometheus endpoints of the nodes; of a node that is just starting none answers yet."""
    nodes: Any = ray.nodes
    pages = []
    for node in nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            pages.append(answer.read().decode())
    return "\n".join(pages)
