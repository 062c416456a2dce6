"""Programs in processes of their own: forks of one that has imported what all of them need, which takes a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 250
"""A program takes no longer."""
STARTER = """
import json, os, signal, sys, traceback, types
import numpy, pyarrow, ray, pecan_ray, pecan_ray.in_process, pecan_ray.pipeline
from pecan_ray.autoorder import order

order.APART = False  # as in all unit tests: a sample in a process of its own takes a second more
for line in sys.stdin:
    program = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(program["seconds"])
    os.chdir(program["folder"])
    os.environ.update(program["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(program["said"][number - 1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv[1:] = program["arguments"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(program["code"], "<program>", "exec"), vars(sys.modules["__main__"]))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(int(ray.is_initialized()))
"""


def run_python(
    *arguments: str, finding: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, and in the folder in which it finds `pecan_ray`."""
    known = {**os.environ, "PYTHONPATH": str(finding), **(env or {})}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=finding, env=known, capture_output=True, text=True, check=False)


class Programs:
    """Runs programs one after the other; a program that has started Ray has failed."""

    def __init__(self, starter: subprocess.Popen[str]) -> None:
        self._starter = starter

    def run(self, code: str, folder: Path, *arguments: str, said: Path) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder; `said`: a folder for what it prints."""
        assert self._starter.stdin is not None and self._starter.stdout is not None
        files = [said / f"said.{number}" for number in (1, 2)]
        program = {
            "code": code,
            "arguments": arguments,
            "folder": str(folder),
            "env": dict(os.environ),
            "said": [str(file) for file in files],
            "seconds": MOST_S,
        }
        self._starter.stdin.write(json.dumps(program) + "\n")
        self._starter.stdin.flush()
        status = int(self._starter.stdout.readline())
        return subprocess.CompletedProcess(code, status, files[0].read_text(), files[1].read_text())


@contextmanager
def started_programs() -> Iterator[Programs]:
    """Start the process of which programs are forks."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        yield Programs(starter)
