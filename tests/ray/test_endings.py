"""However a trainer ends, nothing of its job stays: no actor, no shared memory, no temporary file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

from tests.long_form import some_later
from tests.ray.conftest import FREE_PORTS, ROOT
from tests.ray.endings import ENDINGS, PROGRAM, actor_processes, memory_files, must_end_well
from tests.ray.waiting import ENDS_S, until


@pytest.mark.parametrize("kind", some_later(ENDINGS, *(kind for kind in ENDINGS if kind != "sigkill")))
def test_a_program_that_ends_returns_its_own_code_and_leaves_nothing(
    three_nodes: Any, tmp_path: Path, kind: str
) -> None:
    must_end_well(kind, 0, three_nodes.address, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENDINGS)
def test_a_program_with_a_ray_of_its_own_does_so_as_well(tmp_path: Path, kind: str) -> None:
    must_end_well(kind, 1, None, tmp_path)


@pytest.mark.slow
def test_a_stopped_ray_job_leaves_nothing() -> None:
    """`ray job stop` sends SIGTERM to the program, and SIGKILL three seconds later."""
    head = {"num_cpus": 2, **FREE_PORTS, "include_dashboard": True}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        client = JobSubmissionClient(f"http://{cluster.head_node.address_info['webui_url']}")
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        job = client.submit_job(entrypoint=f"{sys.executable} {PROGRAM} endless 0", runtime_env=environment)
        until(lambda: "running" in client.get_job_logs(job), "the job does not run")
        until(lambda: actor_processes() and memory_files(), "no local worker has come")
        assert client.stop_job(job)
        until(lambda: client.get_job_status(job).is_terminal(), "the job does not stop")
        assert client.get_job_status(job) == "STOPPED"
        until(lambda: not actor_processes() and not memory_files(), "an actor is left")
    finally:
        cluster.shutdown()


def run(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python to its end."""
    env = {**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **environment}
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, *arguments], env=env, cwd=folder, capture_output=True, text=True, timeout=ENDS_S
    )


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    done = run([str(PROGRAM), "dropped", "0"], tmp_path, RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 1
    assert "ClusterError: Ray cannot be reached at RAY_ADDRESS=127.0.0.1:1" in done.stderr
    assert "iter_batches(debug=True)" in done.stderr


TWO_THREADS = """
import threading
import numpy as np
import pecan_ray as pecan

def read(name):
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name=name).batch(10)
    seen[name] = sorted(int(i) for batch in pipe.iter_batches(workers=pecan.Workers(local=1)) for i in batch["i"])

seen = {}
threads = [threading.Thread(target=read, args=(name,)) for name in ("one", "other")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
read("after")  # Ray has outlived the thread that has started it
assert list(seen.values()) == [list(range(40))] * 3, seen
print("all of them")
"""


def test_two_threads_start_one_ray_that_outlives_them_where_rays_file_names_a_cluster_that_is_gone(
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        Path(folder, "ray").mkdir()
        Path(folder, "ray", "ray_current_cluster").write_text("127.0.0.1:1")
        done = run(["-c", TWO_THREADS], tmp_path, RAY_TMPDIR=folder)
    assert "all of them" in done.stdout, done.stderr
    assert done.stderr.count("names a cluster at 127.0.0.1:1 that does not answer") == 1, done.stderr
