"""A controller that is frozen: whoever waits for it says so, by the job's name."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.runtime import calls, leaving, long_wait
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.session import Session
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


def batches(job: str) -> Any:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(400)), name="frozen").batch(4)
    return pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1), job=job)


def test_who_registers_with_it_and_who_closes_is_told_that_it_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_wait, "SAY_AFTER_S", 0.2)
    frozen: list[int] = []
    start = Session._controller

    def started(self: Session, job: Job, pickled: bytes) -> Any:
        """Start a controller, and freeze it as soon as it has answered once."""
        controller = start(self, job, pickled)
        frozen.append(ray.get(controller.process_id.remote()))
        os.kill(frozen[0], signal.SIGSTOP)
        return controller

    monkeypatch.setattr(Session, "_controller", started)
    with caplog.at_level(logging.WARNING):

        def thaw() -> None:
            try:
                until(lambda: "frozen-start: its controller does not answer" in caplog.text, "nothing is said")
            finally:
                os.kill(frozen[0], signal.SIGCONT)

        thread = threading.Thread(target=thaw)
        thread.start()
        with batches("frozen-start") as it:
            next(it)
            thread.join()
            os.kill(frozen[0], signal.SIGSTOP)
            monkeypatch.setattr(leaving, "LEAVE_S", 3.0)
            monkeypatch.setattr(leaving, "SAY_AFTER_S", 0.0)
            monkeypatch.setattr(calls, "LOOK_S", 0.1)
            try:
                it.close()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(frozen[0], signal.SIGCONT)
    said = [text for text in caplog.messages if "job frozen-start: it is being closed" in text]
    assert len(said) == 1 and "its controller does not answer" in said[0], caplog.messages
