"""Runs that are cut off in the middle and go on from their states, on real workers."""

from __future__ import annotations

import json
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
from pecan_ray.quarantine import quarantined
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


def test_a_state_leaves_out_what_was_fetched_ahead_and_the_next_epochs_follow_it() -> None:
    pipe = numbers(ROWS, "by-hand").shuffle(100).batch(8)
    with pipe.iter_batches(workers=ONE) as batches:
        used = ids(next(batches) for _ in range(3))
        next(batches), next(batches)
        state = saved(batches.state_dict(ahead=2))
        with pytest.raises(PlanError, match="ahead must be from 0 to 8, but got 9"):
            batches.state_dict(ahead=9)
    with pipe.iter_batches(workers=ONE, state=state) as batches:
        assert sorted(used + ids(batches)) == list(range(ROWS)) and batches.report().epochs == 1
    with pipe.iter_batches(workers=ONE, epochs=2) as batches:
        assert [sorted(ids(batches.one_epoch())) for _ in range(3)] == [[*range(ROWS)], [*range(ROWS)], []]
        assert batches.report().epochs == 2


def test_epochs_of_a_fixed_length_go_on_from_a_state_and_ranks_leave_when_they_have_all_their_steps() -> None:
    pipe, closed = numbers(101, "steps").batch(5), threading.Event()
    options: dict[str, Any] = {"epochs": None, "epoch_batches": 3, "steps": 7}

    def train(rank: int) -> list[Any]:
        with pipe.iter_batches(rank=rank, world_size=2, job="steps", workers=ONE, **options) as batches:
            got = [next(batches) for _ in range(6)]
            if rank:
                assert closed.wait(ENDS_S)
            got += [*batches]
        closed.set()
        return got

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(train, range(2)))
    for epoch in (0, 1):
        seen = ids(batch for rank in ranks for batch in rank[3 * epoch : 3 * epoch + 3])
        assert len(seen) == len(set(seen)) == 30
    assert [len(rank) for rank in ranks] == [7, 7]
    options |= {"first_epoch": 0}
    with pipe.iter_batches(workers=ONE, **options) as batches:
        first = [ids([next(batches)]) for _ in range(4)]
        state = saved(batches.state_dict())
    with pipe.iter_batches(state=state, workers=ONE, **options) as batches:
        assert len(batches) == 7 - 4
        rest = [ids([batch]) for batch in batches]
    assert first + rest == [ids([batch]) for batch in pipe.iter_batches(debug=True, **options)]


KEEPER = """
import json
import signal
import sys
from itertools import islice

from tests.ray.pipelines import ONE, ids
from tests.ray.test_state import BAD, with_bad_ones
from tests.ray.waiting import until

batches = with_bad_ones(sys.argv[1]).iter_batches(epochs=2, workers=ONE, on_error="quarantine")
got = ids(islice(batches, 5))
until(lambda: batches.report().bad_elements == 2 * len(BAD), "not all was received")
print(json.dumps([got, batches.state_dict()]), flush=True)
signal.pause()  # until it is killed
"""


def with_bad_ones(path: str) -> pecan.PecanPipeline:
    """A pipeline of which every fifth split is bad from its first element to its last, and other elements as well."""
    config = pecan.Config(error_budget=1.0, quarantine_path=path)
    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=20)
    return pecan.PecanPipeline(source, name="keeper", config=config).map(often_fails, on="i").batch(6)


def often_fails(i: Any) -> Any:
    if i // 20 % 5 == 1 or i % 50 == 49:
        raise ValueError("no such luck")
    return i


BAD = [i for i in range(ROWS) if i // 20 % 5 == 1 or i % 50 == 49]


def test_a_program_killed_behind_its_state_has_kept_each_bad_element_that_does_not_come_again(
    three_nodes: Any, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    with started(KEEPER, environment_at(three_nodes.address), str(path)) as program:
        assert program.stdout is not None
        got, state = json.loads(program.stdout.readline())
    options: dict[str, Any] = {"epochs": 2, "workers": ONE, "on_error": "quarantine"}
    with with_bad_ones(str(path)).iter_batches(state=state, **options) as it:
        got += ids(it)
    assert Counter(got) == Counter({i: 2 for i in range(ROWS) if i not in BAD})
    kept = Counter((one.origin.epoch, int(one.element["i"])) for one in quarantined(path) if one.origin is not None)
    assert kept == Counter((epoch, i) for epoch in range(2) for i in BAD)
    until(lambda: not left_behind(), lambda: f"there is {left_behind()}")


def test_a_state_that_a_loop_in_another_thread_runs_away_from_is_refused_by_that() -> None:
    """While the loop stands, any number of threads are told the same."""
    with numbers(ROWS).batch(2).iter_batches(epochs=None, workers=ONE) as it, ThreadPoolExecutor(4) as pool:
        over, refused = threading.Event(), list[str]()

        def asked() -> bool:
            try:
                it.state_dict()
            except StateError as error:
                refused.append(str(error))
            return bool(refused)

        running = pool.submit(lambda: next(True for _ in it if over.is_set()))
        try:
            until(asked, "the loop is never ahead")
        finally:
            over.set()
        assert running.result() and "gone on in another thread" in refused[0]
        states = list(pool.map(lambda _: saved(it.state_dict()), range(8)))
        assert all(state == states[0] for state in states)


@pytest.mark.slow
def test_data_that_has_changed_is_refused_and_told_where_it_is_allowed(tmp_path: Path) -> None:
    file, lines = tmp_path / "lines.txt", [f"{line}\n" for line in range(200)]
    file.write_text("".join(lines))
    pipe = pecan.PecanPipeline(pecan.sources.TextLines(file), name="texts").batch(10)
    with pipe.iter_batches(workers=ONE) as it:
        next(it)
        state = it.state_dict()
    file.write_text("".join([*lines[:-1], "x\n"]))
    with pytest.raises(StateError, match=r"changed since the state.*allow_changed_source=True"):
        list(pipe.iter_batches(workers=ONE, state=state))
    with pipe.iter_batches(workers=ONE, state=state, allow_changed_source=True) as it:
        assert sum(len(batch["text"]) for batch in it) == 190
        until(lambda: any(e.kind == "state" for e in it.report().events), "nothing was told of the change")
