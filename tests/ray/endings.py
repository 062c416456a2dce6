"""Runs programs that end in many ways, and looks for what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.ray.conftest import ROOT, living_actors
from tests.ray.waiting import ENDS_S, until

PROGRAM = Path(__file__).with_name("endings_program.py")
ENDINGS: dict[str, set[int]] = {
    "dropped": {0},
    "dropped-in-a-cycle": {0},
    "kept": {0},
    "read-and-kept": {0},
    "batches-held": {0},
    "generator-left": {0},
    "shutdown-before-close": {0},
    "shutdown-before-end": {0},
    "shutdown-midway": {0},
    "exit-in-loop": {3},
    "exit-in-with": {3},
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


@dataclass(frozen=True)
class Ended:
    """How a program has ended."""

    kind: str
    seed: int
    code: int | None
    """None: it did not end."""
    stdout: str
    stderr: str

    def wrong(self) -> str:
        """Say what was wrong with it; empty if nothing."""
        found = [crash for crash in CRASHES if crash in self.stderr]
        if self.code is None:
            found.append("it did not end")
        elif self.code not in ENDINGS[self.kind]:
            found.append(f"it returned {self.code}")
        if len(re.findall("^Traceback", self.stderr, re.MULTILINE)) > TRACEBACKS.get(self.kind, 0):
            found.append("a traceback")
        if self.kind == "shutdown-midway" and not self.stdout.startswith("told: Ray was shut down"):
            found.append(f"the loop was not told: {self.stdout[:200]}")
        return f"{self.kind} {self.seed}: {', '.join(found)}\n{self.stderr[-3000:]}" if found else ""


def run_ending(kind: str, seed: int, address: str | None, folder: Path) -> Ended:
    """Run a program to its end: on the cluster at an address, or with a Ray of its own (None)."""
    with tempfile.TemporaryDirectory(prefix="ray-") as own:
        return _run_ending(kind, seed, {"RAY_ADDRESS": address} if address else {"RAY_TMPDIR": own}, folder)


def _run_ending(kind: str, seed: int, ray_is: dict[str, str], folder: Path) -> Ended:
    environment = {**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **ray_is}
    environment["PYTHONPATH"] = str(ROOT)
    remote = ["remote"] if "RAY_ADDRESS" in ray_is else []
    arguments = [sys.executable, "-X", "faulthandler", str(PROGRAM), kind, str(seed), *remote]
    program = subprocess.Popen(
        arguments,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = program.communicate(timeout=ENDS_S)
        code: int | None = program.returncode
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGABRT)  # faulthandler tells where it hangs
        stdout, stderr = program.communicate()
        code = None
    until(lambda: not session_of(program.pid), f"{kind} {seed}: a process is left")
    return Ended(kind, seed, code, stdout, stderr)


def run_endings(kinds: list[tuple[str, int]], address: str | None, folder: Path, at_a_time: int = 2) -> list[str]:
    """Run programs, some at a time; return what was wrong."""
    before = temporary_files()
    with ThreadPoolExecutor(at_a_time) as pool:
        ended = list(pool.map(lambda one: run_ending(one[0], one[1], address, folder), kinds))
    if address is not None:
        until(lambda: not living_actors(), "an actor is still alive")
    until(lambda: not actor_processes(), "a process of an actor still runs")
    until(lambda: not memory_files(), "a memory file is still open")
    assert not list(folder.rglob("*pecan*")) and temporary_files() <= before
    return [wrong for one in ended if (wrong := one.wrong())]


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
