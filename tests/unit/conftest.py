"""Unit tests start no Ray: whatever needs a cluster belongs into tests/ray."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import ray
from hypothesis import HealthCheck, settings

from pecan_ray.autoorder import job_order

# How fast examples are drawn and run is the machine's affair.
settings.register_profile(
    "pecan", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.load_profile("pecan")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `ray.init` fail, also where Ray would call it by itself."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError("a test in tests/unit tried to start or join Ray: move it to tests/ray")

    monkeypatch.setattr(ray, "init", refuse)


@pytest.fixture(autouse=True)
def samples_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets AutoOrder run its samples in this process, which takes a second less; `test_sample_subprocess` undoes it."""
    monkeypatch.setattr(job_order, "APART", False)
