"""Runs that are cut off in the middle and go on from their states, on real workers, and bad elements that are kept."""

from __future__ import annotations

import json
import runpy
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from benchmarks.faults.processes import left_behind
from pecan_ray.errors import PlanError, StateError
from pecan_ray.job.delivery_log import MOST_UNUSED
from pecan_ray.plan.splits import Origin
from pecan_ray.quarantine import quarantined
from pecan_ray.runtime.client import BatchClient
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers
from tests.ray.user_programs import environment_at, started
from tests.ray.waiting import ENDS_S, until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 600


def even_twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(2 if row["i"] % 2 == 0 else 1):
        yield {"i": row["i"], "part": part}


def saved(state: dict[str, Any]) -> Any:
    """A state as it comes back from a file."""
    return json.loads(json.dumps(state))


def test_what_was_not_yielded_comes_from_a_state_also_where_an_iterator_that_runs_is_set_to_it() -> None:
    pipe = numbers(ROWS).flat_map(even_twice).shuffle(100).repeat(2).batch(11)
    once = Counter({i: 4 if i % 2 == 0 else 2 for i in range(ROWS)})
    with pipe.iter_batches(epochs=2, workers=TWO) as it:
        got, state = list[int](), {}
        for batch in islice(it, 40):
            got += ids([batch])
            state = saved(it.state_dict())
    assert saved(it.state_dict()) == state, "a closed iterator knows its last state"
    with pytest.raises(PlanError, match="only the last state is known"):
        it.state_dict(ahead=1)
    with pytest.raises(StateError, match="operator batch"):
        numbers(ROWS).batch(7).iter_batches(state=state)
    with pytest.raises(PlanError, match="sharding='off'"):
        pipe.iter_batches(state=state, sharding="off", workers=ONE)
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=2), state=state) as it:
        ids(islice(it, 5))
        with pytest.raises(StateError, match="damaged"):
            it.load_state_dict({**state, "epoch": 1})
        assert ids(islice(it, 2)), "it runs on"
        with pytest.raises(StateError, match="what get_state has returned"):
            it.set_state(b"{")
        it.set_state(json.dumps(state).encode())
        assert json.loads(it.get_state()) == saved(it.state_dict()), "as Grain's checkpoint handlers ask"
        rest = ids(it)
    assert Counter(got) + Counter(rest) == once + once


KEEPER = """
import json
import signal
import sys
from itertools import islice

from tests.ray.pipelines import TWO, ids
from tests.ray.test_state import BAD, with_bad_ones
from tests.ray.waiting import ENDS_S, until

batches = with_bad_ones(sys.argv[1]).iter_batches(epochs=2, workers=TWO, on_error="quarantine")
got = ids(islice(batches, 5))
until(lambda: batches.report().bad_elements == 2 * len(BAD), "not all was received")
until(lambda: any("zone=moon" in event.text for event in batches.report().events), "the missing label is not named")
print(json.dumps([got, batches.state_dict()]), flush=True)
signal.pause()  # until it is killed
"""


def with_bad_ones(path: str) -> pecan.PecanPipeline:
    """A pipeline of which every fifth split is bad from its first element to its last, and other elements as well.

    Its remote workers find no place.
    """
    labels = {"zone": "moon"}
    config = pecan.Config(error_budget=1.0, quarantine_path=path, remote_labels=labels, placement_warning_s=0.5)
    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=20)
    return pecan.PecanPipeline(source, name="keeper", config=config).map(often_fails, on="i").batch(6)


def often_fails(i: Any) -> Any:
    if i // 20 % 5 == 1 or i % 50 == 49:
        raise ValueError("no such luck")
    return i


BAD = [i for i in range(ROWS) if i // 20 % 5 == 1 or i % 50 == 49]


def test_a_program_killed_behind_its_state_has_kept_each_bad_element_and_leaves_no_worker_that_waits_for_a_place(
    three_nodes: Any, tmp_path: Path
) -> None:
    """Not even what Ray would start as soon as there is room, or would have an autoscaler make room for."""
    path = tmp_path / "bad.jsonl"
    with started(KEEPER, environment_at(three_nodes.address), str(path)) as program:
        assert program.stdout is not None
        got, state = json.loads(program.stdout.readline())
        assert any(":remote-" in name for name in living_actors())
    until(lambda: not left_behind(), lambda: f"there is {left_behind()}")
    options: dict[str, Any] = {"epochs": 2, "workers": ONE, "on_error": "quarantine"}
    with with_bad_ones(str(path)).iter_batches(state=state, **options) as it:
        got += ids(it)
    assert Counter(got) == Counter({i: 2 for i in range(ROWS) if i not in BAD})
    kept = Counter((one.origin.epoch, int(one.element["i"])) for one in quarantined(path) if one.origin is not None)
    assert kept == Counter((epoch, i) for epoch in range(2) for i in BAD)


def test_a_state_that_a_loop_in_another_thread_runs_away_from_is_refused_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the loop stands, any number of threads are told the same."""
    tell_all = BatchClient.tell_all

    def slowly(client: BatchClient) -> int:
        used = tell_all(client)
        until(lambda: tell_all(client) > used + MOST_UNUSED, "the loop stands")
        return used

    with numbers(ROWS).batch(2).iter_batches(epochs=None, workers=ONE) as it, ThreadPoolExecutor(4) as pool:
        over = threading.Event()
        running = pool.submit(lambda: next(True for _ in it if over.is_set()))
        try:
            # The job knows of what a loop does in the time that a busy machine may take for the question.
            with monkeypatch.context() as slow:
                slow.setattr(BatchClient, "tell_all", slowly)
                with pytest.raises(StateError, match="gone on in another thread"):
                    it.state_dict()
        finally:
            over.set()
        assert running.result()
        states = list(pool.map(lambda _: saved(it.state_dict()), range(8)))
        assert all(state == states[0] for state in states)


# --- elements that fail, and one that takes its process with it ---------------------------------------------------

PROGRAM = """
import os

import numpy as np

import pecan_ray as pecan


def strictly(i):
    if i in (3, 60):
        raise ValueError("refused")
    if i == 77:
        os._exit(9)
    return i


source = pecan.sources.Arrays(i=np.arange(200), split_rows=20)  # each larger split costs more workers
pipe = pecan.PecanPipeline(source, name="bad").map(strictly, on="i").batch(4)
"""


def test_the_file_of_bad_elements_has_the_one_that_kills_its_process_too_and_is_replayed_without_running_code(
    tmp_path: Path,
) -> None:
    program, path = tmp_path / "train.py", tmp_path / "bad.jsonl"
    program.write_text(PROGRAM)
    pipe: Any = runpy.run_path(str(program))["pipe"].with_config(quarantine_path=str(path), reorder="off")
    with pipe.iter_batches(on_error="quarantine", workers=TWO) as batches:
        assert ids(batches) == [i for i in range(200) if i not in (3, 60, 77)], "in the order of the source"
    report = batches.report()
    assert report.bad_elements == 3 and "3 bad elements" in str(report) and report.workers_lost <= 8
    assert any("element 17 of split 3 is left out" in event.text for event in report.events)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = {bad.where: bad for bad in quarantined(path)}
    deadly = kept.pop("element 17 of split 3")
    assert (deadly.origin, deadly.element) == (Origin(0, 0, 0, 3, 17), None)
    assert sorted(int(bad.element["i"]) for bad in kept.values()) == [3, 60], "read without trust: no pickle is in it"
    assert '"pickle"' not in path.read_text()
    command = [sys.executable, "-m", "pecan_ray.cli", "replay", str(path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert (done.stdout + done.stderr).count("ValueError: refused") >= 2, done.stdout + done.stderr
