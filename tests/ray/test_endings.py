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

from benchmarks.faults.processes import left_behind
from tests.long_form import some_later
from tests.ray.user_programs import environment_at, no_ray_folder, run_program, session_of
from tests.ray.waiting import ENDS_S, until

PROGRAM = Path(__file__).with_name("endings_program.py")
ENDINGS: dict[str, set[int]] = {
    "dropped-in-a-cycle": {0},
    "kept": {0},
    "shutdown-midway": {0},
    "sigint": {-signal.SIGINT, 1},
    # Where Ray is used an interrupted program returns 1, and one that is asked to end 15.
    "sigterm": {-signal.SIGTERM, signal.SIGTERM},
    "sigkill": {-signal.SIGKILL},
}
"""What a program returns."""
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
    assert len(re.findall("^Traceback", stderr, re.MULTILINE)) <= (kind == "sigint"), stderr
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
@pytest.mark.parametrize("kind", ["kept", "sigterm"])
def test_a_program_with_a_ray_of_its_own_does_so_as_well(tmp_path: Path, kind: str) -> None:
    must_end_well(kind, 1, None, tmp_path)


TWO_THREADS = """
import threading
import numpy as np
import pecan_ray as pecan

def read(**options):
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="threads").batch(10)
    seen.extend(int(i) for batch in pipe.iter_batches(workers=pecan.Workers(local=1), **options) for i in batch["i"])

seen = []
ranks = [{"rank": rank, "world_size": 2, "job": "both"} for rank in range(2)]
threads = [threading.Thread(target=read, kwargs=rank) for rank in ranks]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
read()  # Ray has outlived the thread that has started it
assert sorted(seen) == sorted([*range(40)] * 2), seen
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
    assert "of 2 has started a Ray of its own" in done.stderr, "another program's rank would not find it"
