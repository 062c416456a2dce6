"""However a trainer ends, nothing of its job stays: no actor, no shared memory, no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ray.conftest import ROOT, living_actors
from tests.ray.waiting import until

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


LEFT = """
import numpy as np
import pecan_ray as pecan

def batches():
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100_000)), name="left")
    with pipe.batch(16).iter_batches(epochs=None, workers=pecan.Workers(local=1)) as running:
        yield from running

left = batches()
next(left)
"""
"""The job is closed by the end of the interpreter."""


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


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "pecan" in name}


def temporary_files() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("pecan*"))


def memory_files() -> list[str]:
    """Open memory files of ours, in any process."""
    found = []
    for process in psutil.process_iter():
        try:
            links = [os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
        except (OSError, psutil.Error):
            continue
        found += [f"{process.pid}: {link}" for link in links if "memfd:pecan-" in link]
    return found


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_that_is_stopped_leaves_nothing(three_nodes: Any, tmp_path: Path, ending: signal.Signals) -> None:
    before = temporary_files()
    trainer = begin(three_nodes.address, tmp_path)
    assert living_actors() and memory_files()
    trainer.send_signal(ending)
    try:
        trainer.communicate(timeout=60)
    finally:
        trainer.kill()
    assert trainer.returncode != 0
    until(lambda: not living_actors(), "an actor is still alive")
    until(lambda: not memory_files(), "a memory file is still open")
    assert not shared_memory()
    assert not list(tmp_path.rglob("*pecan*")) and temporary_files() <= before


def test_a_generator_that_is_left_in_the_middle_ends_in_peace(three_nodes: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": three_nodes.address, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", LEFT], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    until(lambda: not living_actors(), "an actor is still alive")


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "ClusterError: Ray cannot be reached at RAY_ADDRESS=127.0.0.1:1" in done.stderr
    assert "iter_batches(debug=True)" in done.stderr
