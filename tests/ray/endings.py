"""Runs programs that end in many ways, and looks for what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tests.ray.conftest import ROOT, living_actors
from tests.ray.waiting import ENDS_S, until

PROGRAM = Path(__file__).with_name("endings_program.py")
ENDINGS: dict[str, set[int]] = {
    "dropped": {0},
    "dropped-in-a-cycle": {0},
    "kept": {0},
    "generator-left": {0},
    "shutdown": {0},
    "shutdown-midway": {0},
    "exit-in-loop": {3},
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
    with tempfile.TemporaryDirectory(prefix="ray-") as own:
        ray_is = {"RAY_ADDRESS": address} if address else {"RAY_ADDRESS": "local", "RAY_TMPDIR": own}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **ray_is}
        arguments = [sys.executable, "-X", "faulthandler", str(PROGRAM), kind, str(seed)]
        program = subprocess.Popen(
            [*arguments, "remote"] if address else arguments,
            env=environment,
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
    until(lambda: address is None or not living_actors(), "an actor is still alive")
    until(lambda: not actor_processes(), "a process of an actor still runs")
    until(lambda: not memory_files(), "a memory file is still open")
    assert not list(folder.rglob("*pecan*")) and temporary_files() <= before
    assert program.returncode in ENDINGS[kind], stderr
    assert not [crash for crash in CRASHES if crash in stderr], stderr
    assert len(re.findall("^Traceback", stderr, re.MULTILINE)) <= TRACEBACKS.get(kind, 0), stderr
    assert kind != "shutdown-midway" or stdout.startswith("told: Ray was shut down"), stdout + stderr


def session_of(pid: int) -> list[str]:
    """Processes that a program has started, itself and those of its own Ray, if any."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if os.getsid(process.pid) == pid:
                found.append(f"{process.pid}: {process.info['cmdline']}")
        except ProcessLookupError:
            continue
    return found


def actor_processes() -> list[str]:
    """Processes of the cluster of this process that run one of our actors."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if re.match(r"ray::(pecan|AutoPlacementController|PreprocessingWorker|WorkerKeeper)", title):
            found.append(f"{process.pid}: {title}")
    return found


def temporary_files() -> set[Path]:
    """Temporary files of ours."""
    return set(Path(tempfile.gettempdir()).glob("pecan*"))


def memory_files() -> list[str]:
    """Open memory files of ours, in any process of this one's cluster."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            links = [os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
        except (OSError, psutil.Error):
            continue
        found += [f"{process.pid}: {link}" for link in links if "memfd:pecan-" in link]
    return found
