"""A trainer that was stopped and wakes up to find its controller gone reads that it stood still, and for how long."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import ray

from pecan_ray.runtime import calls
from pecan_ray.runtime.calls import Calls


@pytest.mark.parametrize("stood_still", [False, True])
def test_a_lost_controller_is_explained_by_a_standstill_just_before(
    monkeypatch: pytest.MonkeyPatch, stood_still: bool
) -> None:
    monkeypatch.setattr(calls, "LOOK_S", 0.01)
    if stood_still:
        monkeypatch.setattr(calls, "STANDSTILL_S", -0.01)  # any wait that is over counts
    trainer, waited_for = Calls(), Future[Any]()
    assert trainer._wait({waited_for}) == set()
    said = str(trainer.gone(ray.exceptions.RayError("killed by ray.kill")))
    assert ("this process has stood still for" in said and "trainer_timeout_s" in said) == stood_still
    assert "killed by ray.kill" in said
    monkeypatch.setattr(calls, "JUST_S", 0.0)
    assert "stood still" not in str(trainer.gone(ray.exceptions.RayError("killed by ray.kill")))
