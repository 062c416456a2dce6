"""Batches that a thread of the trainer's copies to a device ahead of the training loop."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.waiting import until

torch: Any = pytest.importorskip("torch")
devices: Any = pytest.importorskip("pecan_ray.integrations.devices")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 400


@pytest.fixture
def copied_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have copied a batch to a device, which is this machine's memory as it is without a GPU."""
    by: list[str] = []

    class Noted(devices.OnDevice):  # type: ignore[misc]  # torch is imported where it is installed
        def _copied(self, tensors: Any) -> Any:
            by.append(threading.current_thread().name)
            return super()._copied(tensors)

    monkeypatch.setattr("pecan_ray.batches.device_copies", lambda device: Noted(torch.device("cpu")))
    return by


def run(**options: Any) -> Any:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="copies").batch(10)
    return pipe.iter_batches(format="torch", device="cpu", workers=pecan.Workers(local=1), **options)


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def wait_for(copied_by: list[str], number: int) -> None:
    until(lambda: len(copied_by) == number, f"{number} batches are not copied")


def test_what_comes_while_the_loop_is_busy_is_copied_on_a_thread_that_ends_with_the_job(copied_by: list[str]) -> None:
    batches = run(order="strict", epochs=2)
    seen = ids([next(batches)])
    for number in range(2, 6):
        wait_for(copied_by, number)
        seen += ids([next(batches)])
    wait_for(copied_by, 6)
    state = batches.state_dict()
    left = len(seen)
    seen += ids(batches)
    assert seen == [*range(ROWS)] * 2
    assert copied_by[:5].count("pecan-ahead") >= 4, "none but the first one is waited for"
    assert len(copied_by) == 2 * ROWS / 10, "each once"
    assert "pecan-ahead" not in [thread.name for thread in threading.enumerate()]
    again = ids(run(order="strict", epochs=2, state=state))
    assert seen[:left] + again == seen, "a state leaves out what was only copied ahead"
