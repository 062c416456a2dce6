"""A controller that is frozen: whoever waits for it says so, by the job's name, and goes on with it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.runtime import calls, long_wait, trainer_shutdown
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.session import Session
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 400
STARTS = "frozen: its controller does not answer"
HANGS = "the job's controller has not answered this trainer for "
STATE = "waiting: job frozen: its controller does not answer"


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that stands still meanwhile, if there is one."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_who_begins_asks_for_a_state_reads_or_closes_is_told_that_it_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_wait, "SAY_AFTER_S", 0.2)
    pids: list[int] = []
    start = Session._controller

    def thaw(pid: int) -> None:
        with frozen(pid):
            until(lambda: STARTS in caplog.text, "nothing is said")

    def started(self: Session, job: Job, pickled: bytes) -> Any:
        """Start a controller, and freeze it as soon as it has answered once."""
        controller = start(self, job, pickled)
        pids.append(ray.get(controller.process_id.remote()))
        os.kill(pids[0], signal.SIGSTOP)
        threading.Thread(target=thaw, args=(pids[0],)).start()
        return controller

    monkeypatch.setattr(Session, "_controller", started)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="frozen").batch(4)
    with (
        caplog.at_level(logging.WARNING),
        pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1), job="frozen") as batches,
        ThreadPoolExecutor(1) as pool,
    ):
        seen = next(batches)["i"].tolist()
        caplog.clear()
        with frozen(pids[0]):
            state = pool.submit(batches.state_dict)
            until(lambda: HANGS in caplog.text, "nothing was said")
            until(lambda: any(text.startswith(STATE) for text in caplog.messages), "the state waits in silence")
        assert state.result()
        seen += [int(i) for batch in batches.one_epoch() for i in batch["i"]]
        assert sorted(seen) == list(range(ROWS)) and not batches.report().workers_lost
        assert caplog.text.count(HANGS) == 1
        monkeypatch.setattr(trainer_shutdown, "LEAVE_S", 3.0)
        monkeypatch.setattr(trainer_shutdown, "SAY_AFTER_S", 0.0)
        monkeypatch.setattr(calls, "LOOK_S", 0.1)
        with frozen(pids[0]):
            batches.close()
    said = [text for text in caplog.messages if "job frozen: it is being closed" in text]
    assert len(said) == 1 and "its controller does not answer" in said[0], caplog.messages
