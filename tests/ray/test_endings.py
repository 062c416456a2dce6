"""However a trainer ends, nothing of its job stays: no actor, no shared memory, no temporary file."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

from benchmarks.faults.processes import CONTROLLER, KEEPER, WORKER, left_behind, ours
from tests.long_form import some_later
from tests.ray.conftest import FREE_PORTS, ROOT
from tests.ray.user_programs import environment_at, no_ray_folder, run_program, session_of
from tests.ray.waiting import ENDS_S, until

PROGRAM = Path(__file__).with_name("endings_program.py")
ENDINGS: dict[str, set[int]] = {
    "dropped-in-a-cycle": {0},
    "kept": {0},
    "shutdown": {0},
    "shutdown-midway": {0},
    "error-in-loop": {1},
    "process-exit": {7},
    "sigint": {-signal.SIGINT, 1},
    # Where Ray is used an interrupted program returns 1, and one that is asked to end 15.
    "sigterm": {-signal.SIGTERM, signal.SIGTERM},
    "sigkill": {-signal.SIGKILL},
}
"""What a program returns."""
TRACEBACKS = {"error-in-loop": 1, "sigint": 1}
"""Of the program's own."""
CRASHES = (
    *("Exception ignored", "Fatal Python error", "terminate called", "SIGSEGV", "SIGABRT", "Segmentation fault"),
    "SIGTERM received",  # by a handler that logs in the middle of whatever goes on
)


def must_end_well(kind: str, seed: int, address: str | None, folder: Path) -> None:
    """Run a program on the cluster at an address, or with a Ray of its own: it must return its code and leave nothing.

    It may hang, and then says where.
    """
    before = temporary_files()
    with no_ray_folder() as own:
        arguments = [sys.executable, "-X", "faulthandler", str(PROGRAM), kind, str(seed)]
        program = subprocess.Popen(
            [*arguments, "remote"] if address else arguments,
            env=environment_at(address) if address else environment_at("local", **own),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = program.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGABRT)  # faulthandler tells where it hangs
            stdout, stderr = program.communicate()
        until(lambda: not session_of(program.pid), f"{kind} {seed}: a process is left")
    until(lambda: address is None or not left_behind(), lambda: f"there is {left_behind()}")
    assert not list(folder.rglob("*pecan*")) and temporary_files() <= before
    assert program.returncode in ENDINGS[kind], stderr
    assert not [crash for crash in CRASHES if crash in stderr], stderr
    assert len(re.findall("^Traceback", stderr, re.MULTILINE)) <= TRACEBACKS.get(kind, 0), stderr
    assert kind != "shutdown-midway" or stdout.startswith("told: Ray was shut down"), stdout + stderr


def temporary_files() -> set[Path]:
    """Temporary files of ours."""
    return set(Path(tempfile.gettempdir()).glob("pecan*"))


@pytest.mark.parametrize("kind", some_later(ENDINGS, *(kind for kind in ENDINGS if kind != "sigkill")))
def test_a_program_that_ends_returns_its_own_code_and_leaves_nothing(
    three_nodes: Any, tmp_path: Path, kind: str
) -> None:
    must_end_well(kind, 0, three_nodes.address, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kept", "shutdown", "sigint", "sigterm"])
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
        assert client.stop_job(job)
        until(lambda: client.get_job_status(job).is_terminal(), "the job does not stop")
        assert client.get_job_status(job) == "STOPPED"
        until(lambda: not any(map(ours, (WORKER, CONTROLLER, KEEPER))), "a process of an actor still runs")
    finally:
        cluster.shutdown()


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
    with no_ray_folder() as own:
        file = Path(own["RAY_TMPDIR"], "ray", "ray_current_cluster")
        file.parent.mkdir()
        file.write_text("127.0.0.1:1")
        done = run_program(TWO_THREADS, tmp_path, None, **own)
    assert "all of them" in done.stdout, done.stderr
    assert done.stderr.count("names a cluster at 127.0.0.1:1 that does not answer") == 1, done.stderr
