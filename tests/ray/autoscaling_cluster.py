"""A Ray cluster whose nodes are brought up and down by Ray's own autoscaler, all on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from tests.ray.conftest import ROOT
from tests.ray.waiting import until


def configuration(address: str, most_nodes: int, cpus: int) -> dict[str, Any]:
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
        "max_workers": most_nodes,
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
                "resources": {"CPU": cpus, "object_store_memory": 100 << 20},
                "labels": {"pecan-role": "remote"},
                "node_config": {},
                "min_workers": 0,
                "max_workers": most_nodes,
            },
        },
        **{key: [] for key in empty_lists},
    } | {"file_mounts_sync_continuously": False}


@contextlib.contextmanager
def autoscaling_cluster(folder: Path, most_nodes: int, cpus: int) -> Iterator[str]:
    """Run a head node with an autoscaler in processes of its own; yield its address."""
    # Of its own, so that the address of this cluster is not what others find; short, since sockets lie in it.
    temporary = tempfile.mkdtemp(prefix="ray-")
    port = free_port()
    config = folder / "cluster.json"
    config.write_text(json.dumps(configuration(f"127.0.0.1:{port}", most_nodes, cpus)))
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
    with (folder / "head.log").open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: listens(port) or head.poll() is not None, "no head node")
        assert head.poll() is None, (folder / "head.log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        end(head)
        shutil.rmtree(temporary, ignore_errors=True)


def end(head: subprocess.Popen[bytes]) -> None:
    """End a head node and everything that it has started."""
    family = [p for p in psutil.process_iter() if session_of(p.pid) == head.pid]
    family += [child for process in family for child in descendants(process)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    head.wait(timeout=30)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return a process's children and theirs."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def session_of(pid: int) -> int:
    """Return a process's session, 0 if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether somebody listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
