"""Controllers that are killed: the job goes on from its journal, workers live on, every element comes exactly once."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import JournalError
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.runtime.journal_file import JournalPlace, kept_job
from pecan_ray.runtime.worker_actor import worker_actor_spec
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers, times
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, controller_process, kill_controller, living_worker, process_of

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 20_000
"""Elements, whose numbers are more than Ray keeps for starting an actor again."""


def slow_numbers(name: str, **options: Any) -> pecan.PecanPipeline:
    return numbers(ROWS, name, **options).filter(slowly, on="i").batch(50)


def slowly(i: Any) -> Any:
    if i % 50 == 0:
        time.sleep(0.005)
    return i % 3 > 0


KEPT = Counter({i: 1 for i in range(ROWS) if i % 3 > 0})


def test_a_damaged_journal_ends_a_job_whose_controller_is_killed_and_the_error_keeps_no_batch_alive(
    tmp_path: Path,
) -> None:
    JournalPlace(tmp_path, "elsewhere", "actor").keep_job(b"cno_such_module\nJob\n.")
    with pytest.raises(JournalError, match=r"elsewhere\.job cannot be unpickled: .*no_such_module"):
        pecan.journal_state(tmp_path, "elsewhere")
    with pytest.raises(JournalError, match="holds no journal of job nobody"):
        pecan.journal_state(tmp_path, "nobody")
    seen: list[weakref.ref[Any]] = []

    def iterate() -> None:
        pipe = slow_numbers("open", config=pecan.Config(journal=tmp_path))
        with pipe.iter_batches(job="open", epochs=None, workers=ONE) as batches:
            run: Any = batches._run
            next(batches)
            until(lambda: run.session.client.progress().queued, "no batch is ahead that could be left")
            batches.leave_epoch()
            next(batches)
            state = batches.state_dict()  # now the job knows of all batches
            assert state["passed"] and pecan.journal_state(tmp_path, "open") == state, "it knows what a loop has left"
            until(lambda: run.session.client.progress().queued, "no batch is ahead")
            with (tmp_path / "open.journal").open("r+b") as file:
                file.seek(20)
                file.write(b"##")
            kill_controller("open")
            for batch in batches:
                seen.append(weakref.ref(batch["i"]))

    gc.disable()
    try:
        told = ""
        try:
            iterate()
        except JournalError as error:
            told = str(error)
        assert "controller of job open was lost, " in told and "\n" not in told and "Traceback" not in told
        assert "open.journal cannot be gone on from: entry 1 of a journal is damaged" in told
        assert seen and not any(one() is not None for one in seen)
    finally:
        gc.enable()


# --- workers that outlive their controller --------------------------------------------------------------------


def keeper(job: str) -> Any:
    """The one actor that keeps a job's workers."""
    [name] = [name for name in living_actors() if name.startswith(f"pecan:{job}:keeper-")]
    return ray.get_actor(name, namespace="pecan")


MEANWHILE = 3
"""Batches that a trainer uses while there is no controller."""


@contextmanager
def withheld(file: Path) -> Iterator[None]:
    """Let processes that read a file wait for its content until this ends."""
    content = file.rename(file.with_suffix(".content"))
    os.mkfifo(file)
    try:
        yield
        with file.open("wb") as pipe:  # once somebody reads
            pipe.write(content.read_bytes())
    finally:
        content.rename(file)


def test_a_trainer_goes_on_without_a_controller_and_the_next_one_ends_a_worker_that_the_job_has_done_with(
    tmp_path: Path,
) -> None:
    """A process that is killed between the decision and the deed leaves one behind.

    What workers hold comes meanwhile, and what their last leases bring: the trainer does not wait for the next process.
    """
    pipe = numbers(ROWS // 2, "stranger", config=pecan.Config(journal=tmp_path / "journals")).batch(50)
    with pipe.iter_batches(job="stranger", workers=ONE, epochs=None) as batches:
        next(batches)
        place = JournalPlace(tmp_path / "journals", "stranger", "")
        job = kept_job(place.job_file)
        assert job is not None
        instruction = StartWorker("pecan:stranger:remote-7", "remote", "", 1)
        stranger = 0, worker_actor_spec(instruction, {}, pickle.loads(job[1]), job[1])
        ray.get(keeper("stranger").start.remote(*stranger))
        assert living_worker("remote", but=[]) == instruction.worker
        run: Any = batches._run
        until(lambda: run.session.client.progress().queued >= MEANWHILE, "too few batches are ahead")
        with withheld(place.job_file):  # no process takes the place of the killed one meanwhile
            before = kill_controller("stranger")
            for _ in range(MEANWHILE):
                next(batches)
        assert controller_process("stranger") != before
        until(lambda: instruction.worker not in living_actors(), "it lives on")
        next(batches)
        assert "pecan:stranger:local-0" in living_actors()
        with pytest.raises(ray.exceptions.RayTaskError, match="another process is the job's controller now"):
            ray.get(keeper("stranger").start.remote(*stranger))


# --- arrays that workers map ---------------------------------------------------------------------------------

MAPPED = 200
LARGE = 1 << 27
"""Bytes of an array that no worker may hold itself."""
MAX_OWN_BYTES = 3 * LARGE
"""Memory of a worker's process of its own: libraries take some of it, and a plan with the array would take more."""


def test_workers_map_arrays_and_go_on_without_their_controller() -> None:
    large = np.zeros((MAPPED, LARGE // MAPPED // 8))
    source = pecan.sources.Arrays(i=np.arange(MAPPED), large=large)
    pipe = pecan.PecanPipeline(source, name="shared").map(lambda element: {"i": element["i"]}).batch(2)
    with pipe.iter_batches(job="shared", workers=TWO, **ONE_BY_ONE) as batches:
        got = ids(islice(batches, MAPPED // 8))
        workers = [name for name in living_actors() if ":local-" in name or ":remote-" in name]
        held = [psutil.Process(process_of(name)).memory_full_info().uss for name in workers]
        assert len(held) == 2 and max(held) < MAX_OWN_BYTES
        pid = process_of(living_worker("local", but=[]))
        kill_controller("shared")
        os.kill(pid, signal.SIGKILL)
        got += ids(batches)
    assert Counter(got) == times(MAPPED)
