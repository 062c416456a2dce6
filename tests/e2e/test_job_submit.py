"""The examples by `ray job submit` on a cluster of three nodes that asks for a token, as Ray's own clusters do."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT

from tests.ray.waiting import until

ROOT = Path(__file__).resolve().parents[2]
NO_AGENT = "No available agent"
"""Says a cluster whose nodes have been up for a moment only."""


@pytest.fixture(scope="module")
def with_token() -> dict[str, str]:
    return {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module")
def beside_another_ray() -> Iterator[None]:
    """The port is taken on which the agent of another Ray on this machine listens, by that or by this process."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("", DEFAULT_DASHBOARD_AGENT_LISTEN_PORT)))
        yield


@pytest.fixture(scope="module")
def dashboard(with_token: dict[str, str], beside_another_ray: None) -> Iterator[str]:
    """Address of the job server.  Ray reads the mode when it is imported: the cluster is a process of its own."""
    program = [sys.executable, str(Path(__file__).with_name("three_nodes.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, env=with_token, text=True, stdin=pipe, stdout=pipe) as cluster:
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        line = next(line for line in cluster.stdout if line.startswith("address "))
        address = line.split()[1]
        # These nodes share a folder, into which each unpacks a job's package: one by one, before programs run there.
        assert submit(address, with_token, "tests/e2e/every_node.py").returncode == 0
        yield address
        cluster.stdin.close()


def submit(dashboard: str, environment: dict[str, str], *program: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the checkout as a job, as the README says, and wait for its end."""
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "job", "submit", "--address", dashboard, "--working-dir", ".", "--", sys.executable, *program]
    done: list[subprocess.CompletedProcess[str]] = []

    def taken() -> bool:
        done.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment))
        return NO_AGENT not in done[-1].stderr

    until(taken, "no node takes jobs")
    return done[-1]


@pytest.mark.parametrize(
    "example",
    [
        "resnet50",
        pytest.param("simclr", marks=pytest.mark.slow),
        pytest.param("retinanet", marks=pytest.mark.slow),
        pytest.param("asr_transformer", marks=pytest.mark.slow),
    ],
)
def test_example_runs_as_a_job_on_three_nodes(dashboard: str, with_token: dict[str, str], example: str) -> None:
    size = ["--images", "32", "--batch", "8"]
    done = submit(dashboard, with_token, f"examples/{example}.py", *size, "--local", "1", "--remote", "1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "succeeded" in done.stdout
    assert f"pecan job {example}" in done.stdout


def test_a_wrong_token_is_refused(dashboard: str, with_token: dict[str, str]) -> None:
    done = submit(dashboard, {**with_token, "RAY_AUTH_TOKEN": secrets.token_hex(32)}, "-c", "print(1)")
    assert done.returncode != 0
    assert "token" in (done.stdout + done.stderr).lower()
