"""Unit tests start no Ray: whatever needs a cluster belongs into tests/ray."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import ray

from pecan_ray.autoorder import order
from pecan_ray.storage import retry
from tests.object_stores import Bucket, empty_bucket, serving_gcs, serving_s3
from tests.tiers import FRAMEWORKS

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")  # a mesh, for those who import JAX


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `ray.init` fail, also where Ray would call it by itself."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError("a test in tests/unit tried to start or join Ray: move it to tests/ray")

    monkeypatch.setattr(ray, "init", refuse)


@pytest.fixture(scope="module", autouse=True)
def quick_files_stay_quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """Finds a file of `make check` that imports a framework without naming it."""
    before = set(sys.modules)
    yield
    came = (FRAMEWORKS & sys.modules.keys()) - before
    if request.config.getoption("quick"):
        assert not came, f"{request.node.nodeid} imports {', '.join(sorted(came))}: name it, or do without it"


@pytest.fixture(autouse=True)
def samples_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets AutoOrder run its samples in this process, which takes a second less; `test_sample_subprocess` undoes it."""
    monkeypatch.setattr(order, "APART", False)


@pytest.fixture(params=["asyncio", "uvloop"])
def each_event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test on Python's event loop and on the one that Ray's actors use where it is installed (by ray[serve])."""
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        for module in (asyncio, asyncio.events):
            monkeypatch.setattr(module, "new_event_loop", uvloop.new_event_loop)


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """Where an S3 answers."""
    with serving_s3() as address:
        yield address


@pytest.fixture(scope="module")
def gcs_endpoint() -> Iterator[str]:
    """Where an emulator of Google Cloud Storage answers."""
    with serving_gcs() as address:
        yield address


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket of either; what fails is asked for again at once."""
    monkeypatch.setattr(retry.Backoff, "pause_s", lambda self, failures, chance: 0.01)
    with empty_bucket(request.param, request.getfixturevalue(f"{request.param}_endpoint")) as found:
        yield found
