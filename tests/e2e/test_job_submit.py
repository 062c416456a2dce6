"""The examples by `ray job submit` on a cluster of three nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """Address of the job server of a cluster of three nodes."""
    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": True,
            "dashboard_port": 0,
            "object_store_memory": 200 << 20,
        },
    )
    for _ in range(2):
        cluster.add_node(num_cpus=2, object_store_memory=200 << 20)
    cluster.wait_for_nodes()
    head: Any = cluster.head_node
    yield f"http://{head.webui_url}"
    cluster.shutdown()


@pytest.mark.parametrize("example", ["resnet50", "simclr", "retinanet", "asr_transformer"])
def test_example_runs_as_a_job_on_three_nodes(dashboard: str, example: str) -> None:
    command = [
        str(Path(sys.executable).parent / "ray"),
        "job",
        "submit",
        "--address",
        dashboard,
        "--working-dir",
        ".",
        "--",
        sys.executable,
        f"examples/{example}.py",
        "--images",
        "32",
        "--batch",
        "8",
        "--local",
        "1",
        "--remote",
        "2",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "succeeded" in done.stdout
    assert f"pecan job {example}" in done.stdout
