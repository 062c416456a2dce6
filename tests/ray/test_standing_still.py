"""Parties that stand still: a hung or a stopped worker, a frozen controller, actors that never answer."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.observe import status_command
from pecan_ray.runtime import calls, long_wait, trainer_shutdown
from pecan_ray.runtime.cluster import NAMESPACE
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.service import SERVICE
from pecan_ray.runtime.session import Session
from pecan_ray.runtime.share_messages import PREFIX
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, Together, living_worker, process_of

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


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


# --- a worker that is stopped, and is never taken for lost ------------------------------------------------------


def test_rows_come_in_order_to_their_end_while_a_worker_stands_still(tmp_path: Path) -> None:
    config = pecan.Config(reorder="off", threads_per_worker=1, worker_timeout_s=3600.0)
    pipe = numbers(1000, config=config).map(Together(tmp_path, 2), on="i").batch(16)
    with pipe.iter_batches(workers=pecan.Workers(2), **ONE_BY_ONE) as batches:
        seen = ids([next(batches)])
        with frozen(process_of(living_worker("local", []))):
            seen += ids(batches)
    assert seen == list(range(1000)) and batches.report().workers_lost == 0


# --- a controller that is frozen --------------------------------------------------------------------------------

ROWS = 400
STARTS = "frozen: its controller does not answer"
HANGS = "the job's controller has not answered this trainer for "
STATE = "waiting: job frozen: its controller does not answer"


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
    pipe = numbers(ROWS, "frozen").batch(4)
    with (
        caplog.at_level(logging.WARNING),
        pipe.iter_batches(epochs=None, workers=ONE, job="frozen") as batches,
        ThreadPoolExecutor(1) as pool,
    ):
        seen = ids([next(batches)])
        caplog.clear()
        with frozen(pids[0]):
            state = pool.submit(batches.state_dict)
            until(lambda: HANGS in caplog.text, "nothing was said")
            until(lambda: any(text.startswith(STATE) for text in caplog.messages), "the state waits in silence")
        assert state.result()
        seen += ids(batches.one_epoch())
        assert sorted(seen) == list(range(ROWS)) and not batches.report().workers_lost
        assert caplog.text.count(HANGS) == 1
        monkeypatch.setattr(trainer_shutdown, "LEAVE_S", 3.0)
        monkeypatch.setattr(trainer_shutdown, "SAY_AFTER_S", 0.0)
        monkeypatch.setattr(calls, "LOOK_S", 0.1)
        with frozen(pids[0]):
            batches.close()
    said = [text for text in caplog.messages if "job frozen: it is being closed" in text]
    assert len(said) == 1 and "its controller does not answer" in said[0], caplog.messages


# --- a function that never comes back, and actors that do not -----------------------------------------------------

LINES, AT = 60, 37
SHORTEST_S = 5.0
"""That can be set."""


@dataclass(frozen=True)
class Hangs:
    """A function that never comes back from one line."""

    folder: Path

    def __call__(self, line: Any) -> Any:
        if line == f"line {AT}":
            (self.folder / "never").read_text()
        return line


@pytest.fixture
def hangs(tmp_path: Path) -> Hangs:
    os.mkfifo(tmp_path / "never")
    (tmp_path / "lines.txt").write_text("".join(f"line {number}\n" for number in range(LINES)))
    return Hangs(tmp_path)


def hanging(hangs: Hangs) -> pecan.PecanPipeline:
    """Return a pipeline of which no worker comes past one line."""
    source = pecan.sources.TextLines(str(hangs.folder / "lines.txt"))
    # A sample would hang as well, and be waited for.
    config = pecan.Config(reorder="off", hung_after_s=SHORTEST_S, error_budget=1.0)
    return pecan.PecanPipeline(source, name="hanging", config=config).map(hangs, on="text", name="decode").batch(4)


def test_what_every_worker_hangs_at_is_left_out_and_nothing_else(hangs: Hangs) -> None:
    with hanging(hangs).iter_batches(workers=pecan.Workers(2), on_error="skip") as batches:
        seen = Counter(line for batch in batches for line in batch["text"])
    report = batches.report()
    assert seen == Counter(f"line {number}" for number in range(LINES) if number != AT)
    assert report.bad_elements == 1 and report.workers_lost >= 2
    lost = [event.text for event in report.events if event.kind == "lost"]
    assert any(f"it hangs: decode has been working on element {AT} of {hangs.folder}" in text for text in lost), lost
    (bad,) = [event.text for event in report.events if event.kind == "bad"]
    assert bad.startswith(f"element {AT} of {hangs.folder / 'lines.txt'} is left out: decode had not done with it")


# --- a function that ends each worker as it is loaded -------------------------------------------------------------


class EndsWorkers:
    """Something that no worker's process lives through the loading of, as of a library for another CPU."""

    def __init__(self) -> None:
        self.state = "there is one, so that it is set"

    def __setstate__(self, state: dict[str, Any]) -> None:
        name: str | None = ray.get_runtime_context().get_actor_name()
        if ":local-" in (name or ""):
            os._exit(3)

    def __call__(self, i: Any) -> Any:
        return i


def test_a_job_that_ends_each_of_its_workers_ends_in_words() -> None:
    pipe = numbers(40, name="ending", config=pecan.Config(reorder="off", worker_timeout_s=3600.0))
    with pytest.raises(pecan.errors.ClusterError, match=r"6 workers in a row were lost before a trainer received"):
        ids(pipe.map(EndsWorkers(), on="i").batch(4).iter_batches(workers=ONE))


class Silent:
    """An actor whose methods do not come back."""

    def __init__(self, gate: str) -> None:
        self._gate = Path(gate)

    def _hang(self, *_: Any) -> None:
        self._gate.read_text()

    stats = groups = io = stop = close = _hang


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[None]:
    """A controller, a shared group and a service that do not answer; the service's process never gets a place."""
    os.mkfifo(tmp_path / "gate")
    kind: Any = ray.remote(num_cpus=0)(Silent)
    actors = [
        kind.options(name=name, namespace=NAMESPACE, resources=resources).remote(str(tmp_path / "gate"))
        for name, resources in (("pecan:some:controller", {}), (f"{PREFIX}some", {}), (SERVICE, {"no such node": 1.0}))
    ]
    yield
    for actor in actors:
        ray.kill(actor)


def test_status_and_stop_name_actors_that_do_not_answer(
    silent: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "ANSWER_S", 0.2)
    assert main(["status"]) == 0
    out, err = capsys.readouterr()
    assert "service: does not answer; `pecan stop` ends it" in out
    assert err.count("does not answer") == 3 and f"pecan: {PREFIX}some does not answer" in err
    assert main(["stop"]) == 1, "it is not known whether the group has readers"
    assert "shared group some does not answer: --force ends its process" in capsys.readouterr().out
    assert main(["stop", "--force"]) == 0
    out = capsys.readouterr().out
    assert "shared group some does not answer: its process was ended" in out and "the service was ended" in out
    until(lambda: not {SERVICE, f"{PREFIX}some"} & set(living_actors()), "what was to be ended still lives")
