"""However a trainer ends, nothing of its job stays: no actor, no shared memory, no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

from tests.long_form import some_later
from tests.ray.conftest import FREE_PORTS, ROOT, living_actors
from tests.ray.endings import (
    ENDINGS,
    actor_processes,
    memory_files,
    run_endings,
    temporary_files,
)
from tests.ray.waiting import ENDS_S, until

PROGRAM = """
import signal
import time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
import numpy as np
import pecan_ray as pecan

pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100_000)), name="ending")
pipe = pipe.map(lambda i: np.full((64, 64), i), on="i", name="grow").batch(16)
with pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1, remote=1)) as batches:
    for number, batch in enumerate(batches):
        time.sleep(0.01)
        if number == 10:
            print("running", flush=True)
"""


def begin(address: str, folder: Path) -> subprocess.Popen[str]:
    """Start a trainer in a process of its own; return when it has received batches."""
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    trainer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert trainer.stdout is not None
    line = trainer.stdout.readline()
    assert line == "running\n", line + (trainer.stderr.read() if trainer.stderr and trainer.poll() is not None else "")
    return trainer


@pytest.mark.parametrize(
    "ending", some_later([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], signal.SIGINT, signal.SIGTERM)
)
def test_a_trainer_that_is_stopped_leaves_nothing(three_nodes: Any, tmp_path: Path, ending: signal.Signals) -> None:
    before = temporary_files()
    trainer = begin(three_nodes.address, tmp_path)
    assert living_actors()
    until(memory_files, "no local worker has come")
    trainer.send_signal(ending)
    try:
        trainer.communicate(timeout=ENDS_S)
    finally:
        trainer.kill()
    assert trainer.returncode != 0
    until(lambda: not living_actors(), "an actor is still alive")
    until(lambda: not memory_files(), "a memory file is still open")
    assert not list(tmp_path.rglob("*pecan*")) and temporary_files() <= before


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(30, marks=pytest.mark.timeout(7200))])
def test_programs_that_end_in_many_ways_return_their_own_code_and_leave_nothing(
    three_nodes: Any, tmp_path: Path, times: int
) -> None:
    kinds = [(kind, seed) for seed in range(times) for kind in ENDINGS]
    wrong = [one for few in lots(kinds) for one in run_endings(few, three_nodes.address, tmp_path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_programs_with_a_ray_of_their_own_end_as_well(tmp_path: Path) -> None:
    kinds = [(kind, seed) for seed in range(4) for kind in ENDINGS]
    wrong = [one for few in lots(kinds) for one in run_endings(few, None, tmp_path, at_a_time=1)]
    assert not wrong, "\n".join(wrong)


def lots(kinds: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Cut a list into pieces, after each of which leftovers are looked for."""
    return [kinds[start : start + len(ENDINGS)] for start in range(0, len(kinds), len(ENDINGS))]


@pytest.mark.slow
def test_a_stopped_ray_job_leaves_nothing(tmp_path: Path) -> None:
    """`ray job stop` sends SIGTERM to the program, and SIGKILL three seconds later."""
    head = {"num_cpus": 2, **FREE_PORTS, "include_dashboard": True}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        address = cluster.head_node.address_info["webui_url"]
        client = JobSubmissionClient(f"http://{address}")
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        (tmp_path / "program.py").write_text(PROGRAM)
        job = client.submit_job(entrypoint=f"{sys.executable} {tmp_path / 'program.py'}", runtime_env=environment)
        until(lambda: "running" in client.get_job_logs(job), "the job does not run")
        until(lambda: actor_processes() and memory_files(), "no local worker has come")
        assert client.stop_job(job)
        until(lambda: client.get_job_status(job).is_terminal(), "the job does not stop")
        assert client.get_job_status(job) == "STOPPED"
        until(lambda: not actor_processes() and not memory_files(), "an actor is left")
    finally:
        cluster.shutdown()


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=ENDS_S
    )
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
        environment = {**os.environ, "RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
        environment.pop("RAY_ADDRESS", None)
        done = subprocess.run(
            [sys.executable, "-c", TWO_THREADS],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
        )
    assert "all of them" in done.stdout, done.stderr
    assert done.stderr.count("names a cluster at 127.0.0.1:1 that does not answer") == 1, done.stderr
