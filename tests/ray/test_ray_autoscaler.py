"""Nodes come and go with the workers that a job asks for: Ray's own autoscaler, with nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

import pecan_ray as pecan
from tests.ray.conftest import ROOT
from tests.ray.user_programs import free_port, session_of
from tests.ray.waiting import until
from tests.ray.waiting_transforms import SMALL, elements, waiting

NODES = 3
LABELS = {"pecan-role": "remote"}


def configuration(address: str) -> dict[str, Any]:
    """Return a cluster configuration of Ray's local provider; every key of a full one must be there."""
    empty_lists = (
        "cluster_synced_files",
        "file_mounts_sync_continuously",
        "rsync_exclude",
        "rsync_filter",
        "initialization_commands",
        "setup_commands",
        "head_setup_commands",
        "worker_setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    )
    return {
        "cluster_name": "pecan-test",
        "max_workers": NODES,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": 0.05,
        "provider": {
            # The provider "fake_multinode", named so that its defaults, which Ray's wheel lacks, are not read.
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "gcs_address": address,
            "disable_node_updaters": True,
        },
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "head_node": {},
        "worker_nodes": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 4}, "node_config": {}, "max_workers": 0},
            "ray.worker.cheap": {
                "resources": {"CPU": 2, "object_store_memory": 100 << 20},
                "labels": LABELS,
                "node_config": {},
                "min_workers": 0,
                "max_workers": NODES,
            },
        },
        **{key: [] for key in empty_lists},
    } | {"file_mounts_sync_continuously": False}


@pytest.fixture
def autoscaled(tmp_path: Path) -> Iterator[None]:
    """Connected to a head node, in processes of its own, whose autoscaler adds up to three nodes of two CPUs each."""
    # Of its own, so that the address of this cluster is not what others find; short, since sockets lie in it.
    temporary = tempfile.mkdtemp(prefix="ray-")
    port = free_port()
    config = tmp_path / "cluster.json"
    config.write_text(json.dumps(configuration(f"127.0.0.1:{port}")))
    environment = {
        **os.environ,
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": "ray.head.default",
        "AUTOSCALER_METRIC_PORT": str(free_port()),
        "RAY_AUTH_MODE": "disabled",
        "RAY_enable_autoscaler_v2": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    environment.pop("RAY_ADDRESS", None)
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=4", f"--autoscaling-config={config}", "--include-dashboard=false"]
    command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
    command += ["--object-store-memory=200000000", f"--ray-client-server-port={free_port()}"]
    command += [f"--temp-dir={temporary}"]
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: is_taken(port) or head.poll() is not None, "no head node")
        assert head.poll() is None, (tmp_path / "head.log").read_text()
        ray.init(address=f"127.0.0.1:{port}", namespace="pecan", log_to_driver=False)
        yield
        leave: Any = ray.shutdown
        leave()
    finally:
        end(head)
        shutil.rmtree(temporary, ignore_errors=True)


def end(head: subprocess.Popen[bytes]) -> None:
    """End a head node and everything that it has started, some of which has sessions of its own."""
    family = [psutil.Process(pid) for pid in session_of(head.pid)]
    for process in [*family, *(child for one in family for child in one.children(recursive=True))]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    head.wait()


def is_taken(port: int) -> bool:
    """Tell whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def remote_nodes() -> int:
    """Count the live nodes besides the head."""
    nodes: Any = ray.nodes
    return sum(bool(node["Alive"]) for node in nodes()) - 1


@pytest.mark.slow
def test_nodes_come_with_remote_workers_and_go_with_them(autoscaled: None) -> None:
    rows = 12_000
    seen: Counter[int] = Counter()
    assert remote_nodes() == 0
    one_worker_a_node = waiting(0.001, rows, cpus_per_worker=2, remote_labels=LABELS)
    with one_worker_a_node.iter_batches(workers=pecan.Workers(local=1, remote=NODES), **SMALL) as batches:
        seen.update(elements(next(batches)))

        def step() -> int:
            """Train on a batch, and count the nodes."""
            time.sleep(0.05)
            seen.update(elements(next(batches)))
            return remote_nodes()

        until(lambda: step() == NODES, f"not {NODES} nodes")
        until(lambda: step() and len(batches.report().workers) == NODES + 1, "not every node got a worker")
        batches.scale(local=1, remote=0)
        until(lambda: step() == 0, "nodes are still up")
        for batch in batches:
            seen.update(elements(batch))
    assert seen == Counter(range(rows))
