"""Controllers that are killed: the job goes on from its journal, and every element comes exactly once."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import ClusterError, JournalError, StateError
from pecan_ray.runtime import long_wait
from pecan_ray.runtime.journal_file import JournalPlace
from tests.long_form import some_later
from tests.ray import workers
from tests.ray.conftest import living_actors
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20_000
"""Elements, whose numbers are more than Ray keeps for starting an actor again."""


def numbers(name: str, **options: Any) -> pecan.PecanPipeline:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name=name, **options)
    return pipe.filter(slowly, on="i").batch(50)


def slowly(i: Any) -> Any:
    if i % 50 == 0:
        time.sleep(0.005)
    return i % 3 > 0


KEPT = Counter({i: 1 for i in range(ROWS) if i % 3 > 0})


def controller(job: str) -> Any:
    return ray.get_actor(f"pecan:{job}:controller", namespace="pecan")


def process_of(job: str) -> int:
    """The controller's process, once there is one that answers."""
    found: list[int] = []

    def answers() -> bool:
        try:
            found.append(ray.get(controller(job).process_id.remote()))
        except ray.exceptions.ActorUnavailableError:
            return False
        return True

    until(answers, "the controller does not come again")
    return found[-1]


def kill(job: str) -> int:
    """Kill the controller's process; return its number."""
    os.kill(pid := process_of(job), signal.SIGKILL)
    return pid


def worker_processes(job: str) -> dict[str, int]:
    """The processes of a job's workers that live, by name."""
    names = [name for name in living_actors() if re.fullmatch(rf"pecan:{job}:(local|remote)-\d+", name)]
    return {name: workers.process_of(name) for name in names}


@pytest.mark.slow
def test_ranks_get_every_element_once_however_often_the_controller_is_killed() -> None:
    """Workers live on: nothing is worked on twice, and nobody is lost."""
    pipe = numbers("killed")
    kills = {0: (5, 150), 1: (60,)}
    meanwhile: list[dict[str, int]] = []

    def train(rank: int) -> tuple[list[int], Any]:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "killed", "epochs": 2}
        got: list[int] = []
        with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), **options) as batches:
            for number, batch in enumerate(batches):
                got += batch["i"].tolist()
                if number in kills[rank]:
                    kill("killed")
                    meanwhile.append(worker_processes("killed"))
            return got, batches.report()

    with ThreadPoolExecutor(2) as pool:
        (first, report), (second, other) = pool.map(train, range(2))
    came = Counter(first) + Counter(second)
    assert came - KEPT == KEPT, "every element that is kept comes once in each epoch"
    restarts = [event for event in report.events if event.kind == "restart"]
    assert restarts and len(restarts) <= 3, "two that follow each other closely are one"
    assert not report.workers_lost and not [event for event in report.events if event.kind == "lost"]
    assert len([event for event in report.events if event.kind == "worker"]) == 2, "none was started again"
    assert {name for found in meanwhile for name in found} <= {"pecan:killed:local-0", "pecan:killed:remote-0"}
    assert len({pid for found in meanwhile for pid in found.values()}) <= 2, "they are the same processes"
    assert any(event.kind == "adopted" for event in report.events)
    assert report.elements + other.elements == 2 * KEPT.total() and not report.left_out_elements


def test_a_trainer_names_the_controller_that_hangs_and_goes_on_with_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it meanwhile says so, too, be it a state, or the end of the job."""
    monkeypatch.setattr(long_wait, "SAY_AFTER_S", 0.2)
    waits = "waiting: job stopped: its controller does not answer"
    got: list[int] = []
    begun = numbers("stopped").iter_batches(job="stopped", workers=pecan.Workers(local=1), epochs=2)
    with begun as batches, ThreadPoolExecutor(1) as pool:
        got += next(batches)["i"].tolist()
        os.kill(pid := process_of("stopped"), signal.SIGSTOP)
        try:
            state = pool.submit(batches.state_dict)
            until(lambda: HANGS in caplog.text, "nothing was said")
            until(lambda: any(text.startswith(waits) for text in caplog.messages), "the state waits in silence")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert state.result(60)
        got += [i for batch in batches for i in batch["i"].tolist()]
        report = batches.report()
    assert Counter(got) == KEPT + KEPT
    assert caplog.text.count(HANGS) == 1 and not report.workers_lost


HANGS = "the job's controller has not answered this trainer for "


@pytest.mark.slow
def test_the_one_trainer_of_a_job_that_scales_is_not_disturbed_by_it(tmp_path: Path) -> None:
    config = pecan.Config(journal=tmp_path / "journals")
    workers = pecan.AutoWorkers(max_local=2, max_remote=1)
    got: list[int] = []
    with numbers("alone", config=config).iter_batches(job="alone", workers=workers) as batches:
        for number, batch in enumerate(batches):
            got += batch["i"].tolist()
            if number in (20, 200):
                kept = {file.suffix for file in (tmp_path / "journals").iterdir() if file.stem == "alone"}
                assert kept == {".job", ".journal", ".listings"}
                before = kill("alone")
                assert process_of("alone") != before
                assert sum(batches.report().elements for _ in range(1)) <= len(got) + 50 * 1000
    assert Counter(got) == KEPT
    assert not list((tmp_path / "journals").iterdir())


@contextmanager
def running(name: str, **options: Any) -> Iterator[Any]:
    """An endless job whose controller can be killed."""
    with numbers(name, **options).iter_batches(job=name, epochs=None, workers=pecan.Workers(local=1)) as batches:
        next(batches)
        yield batches


TRAINER = """
import signal
import sys

import pecan_ray as pecan
from tests.ray.test_journal import numbers

folder, rank, world, used = sys.argv[1], *map(int, sys.argv[2:])
config = pecan.Config(journal=folder, trainer_timeout_s=6)
options = {"rank": rank, "world_size": world, "job": "left", "workers": pecan.Workers(local=1)}
for number, batch in enumerate(numbers("left", config=config).iter_batches(**options), 1):
    print(*batch["i"].tolist(), flush=True)
    if number == used:
        signal.pause()  # until it is killed
"""


@pytest.mark.parametrize("uses", some_later([[7], [7, 7], [12, 7]], [7, 7], [12, 7]))
def test_a_run_whose_whole_program_was_killed_goes_on_from_its_journal(
    three_nodes: Any, tmp_path: Path, uses: list[int]
) -> None:
    """Each rank uses seven batches or more, says so, and is killed: what all had not used by then comes to one.

    Of ranks of which one is slow the state is that of the slowest: what others have used beyond comes again.
    """
    world = len(uses)
    folder, environment = tmp_path / "journals", {**os.environ, "RAY_ADDRESS": three_nodes.address}
    programs = []
    for rank in range(world):
        arguments = [sys.executable, "-c", TRAINER, str(folder), *map(str, (rank, world, uses[rank]))]
        program = subprocess.Popen(
            arguments, env={**environment, "PYTHONPATH": str(ROOT)}, stdout=(tmp_path / f"{rank}").open("w"), cwd=ROOT
        )
        programs.append(program)

    def told() -> bool:
        assert not any(program.poll() for program in programs)
        try:
            used = [len((tmp_path / f"{rank}").read_text().split("\n")) - 1 for rank in range(world)]
            return bool(pecan.journal_state(folder, "left")["batches"] == 7) and used == uses
        except (JournalError, StateError):  # not yet
            return False

    try:
        until(told, "seven batches of each rank were not told of")
    finally:
        for program in programs:
            program.kill()
            program.wait()
    used = [int(i) for rank in range(world) for i in (tmp_path / f"{rank}").read_text().split()[: 7 * 50]]
    assert len(used) == 7 * 50 * world
    until(lambda: not living_actors(), "the job does not end")
    state = pecan.journal_state(folder, "left")
    with numbers("left", config=pecan.Config(journal=folder)).iter_batches(job="left", state=state) as batches:
        rest = [i for batch in batches for i in batch["i"].tolist()]
        assert batches.state_dict()["batches"] == 7 + len(rest) // 50 + bool(len(rest) % 50)
    assert Counter(used) + Counter(rest) == KEPT


def test_what_is_no_journal_of_a_job_is_refused(tmp_path: Path) -> None:
    JournalPlace(tmp_path, "elsewhere", "actor").keep_job(b"cno_such_module\nJob\n.")
    with pytest.raises(JournalError, match=r"elsewhere\.job cannot be unpickled: .*no_such_module"):
        pecan.journal_state(tmp_path, "elsewhere")
    with pytest.raises(JournalError, match="holds no journal of job nobody"):
        pecan.journal_state(tmp_path, "nobody")
    with running("open", config=pecan.Config(journal=tmp_path)):
        assert pecan.journal_state(tmp_path, "open")["pecan_ray_state"]
        (tmp_path / "open.journal").rename(tmp_path / "elsewhere")
        with pytest.raises(JournalError, match=r"open\.journal cannot be read"):
            pecan.journal_state(tmp_path, "open")
        (tmp_path / "elsewhere").rename(tmp_path / "open.journal")
    with pytest.raises(JournalError, match="it has ended"):
        pecan.journal_state(tmp_path, "open")


def test_without_a_journal_a_lost_controller_ends_the_job_and_the_error_keeps_no_batch_alive() -> None:
    seen: list[weakref.ref[Any]] = []

    def iterate() -> None:
        with running("without", config=pecan.Config(journal="off")) as batches:
            kill("without")
            for batch in batches:
                seen.append(weakref.ref(batch["i"]))

    gc.disable()
    try:
        told = ""
        try:
            iterate()
        except ClusterError as error:
            told = str(error)
        assert "the controller of the job is gone" in told
        assert seen and not any(one() is not None for one in seen)
    finally:
        gc.enable()


def test_a_damaged_journal_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with running("damaged", config=pecan.Config(journal=tmp_path)) as batches:
        with (tmp_path / "damaged.journal").open("r+b") as file:
            file.seek(20)
            file.write(b"##")
        kill("damaged")
        with pytest.raises(ClusterError, match=r"entry 1 of a journal is damaged"):
            list(batches)


def test_a_folder_in_which_no_journal_can_be_kept_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipe = numbers("unwritten", config=pecan.Config(journal=tmp_path / "file"))
    with pytest.raises(JournalError, match=r"Config\(journal='.*file'\): no journal can be kept"):
        pipe.iter_batches(workers=pecan.Workers(local=1))
