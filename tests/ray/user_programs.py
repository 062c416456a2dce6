"""Programs of users, in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.ray.conftest import ROOT
from tests.ray.waiting import ENDS_S


def environment_at(address: str | None, **more: str) -> dict[str, str]:
    """Return the environment of a program that uses the Ray at an address; None: it finds or starts one."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**env, "PYTHONPATH": str(ROOT), **({"RAY_ADDRESS": address} if address else {}), **more}


@contextmanager
def started(code: str, env: dict[str, str], *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program in the checkout; kill it at the end if it still runs."""
    command = [sys.executable, "-c", code, *arguments]
    program = subprocess.Popen(command, env=env, cwd=ROOT, text=True, **{"stdout": subprocess.PIPE, **options})
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def run_program(code: str, folder: Path, address: str | None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; without an address in a world where no Ray runs."""
    path = folder / "program.py"
    path.write_text(code)
    with no_ray_folder() as own:
        env = environment_at(address, **{**({} if address else own), **more})
        return subprocess.run(
            [sys.executable, str(path)], env=env, cwd=folder, capture_output=True, text=True, timeout=ENDS_S
        )


@contextmanager
def no_ray_folder() -> Iterator[dict[str, str]]:
    """Yield what lets programs find none of the Rays of this machine, which they would by a file in Ray's folder."""
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as folder:
        yield {"RAY_TMPDIR": folder}


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def session_of(pid: int) -> list[int]:
    """Return the processes of a program's session: itself and those that it has started, of a Ray of its own too."""
    found = []
    for one in psutil.pids():
        with suppress(ProcessLookupError):
            found += [one] if os.getsid(one) == pid else []
    return found
