"""Runs that are cut off in the middle and go on from their states, on real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, StateError
from pecan_ray.quarantine import quarantined
from pecan_ray.runtime.bell import Bell
from pecan_ray.runtime.session import Session
from tests.long_form import some_later
from tests.ray.conftest import living_actors
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, kill, living_worker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROOT = Path(__file__).resolve().parents[2]
ROWS = 600


def numbers(rows: int = ROWS, **options: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(rows)), name="stateful", **options)


def even_twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(2 if row["i"] % 2 == 0 else 1):
        yield {"i": row["i"], "part": part}


def odd_fails(i: Any) -> Any:
    if i % 50 == 49:
        raise ValueError("no such luck")
    return i


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def saved(state: dict[str, Any]) -> Any:
    """A state as it comes back from a file."""
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("cut", some_later([0, 40, 171], 0, 171))
def test_what_was_not_yielded_comes_whatever_lies_between(cut: int) -> None:
    pipe = numbers().flat_map(even_twice).shuffle(100).repeat(2).batch(11)
    once = Counter({i: 4 if i % 2 == 0 else 2 for i in range(ROWS)})
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1, remote=1)) as it:
        got = ids(islice(it, cut))
        state = saved(it.state_dict())
    with pytest.raises(StateError, match="operator batch"):
        numbers().batch(7).iter_batches(state=state)
    with pytest.raises(PlanError, match="sharding='off'"):
        pipe.iter_batches(state=state, sharding="off", workers=pecan.Workers(local=1))
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=2), state=state) as it:
        rest = ids(it)
    assert Counter(got) + Counter(rest) == once + once
    with numbers().batch(6).iter_batches(debug=True) as it, pytest.raises(PlanError, match="debug"):
        it.state_dict()


def run_of(size: int, most: int | None, state: Any) -> tuple[list[int], int, list[Any]]:
    """Let ranks take so many batches each, kill a worker and take their states.

    Returns the elements, how many bad ones were counted, and the states.
    """
    config = pecan.Config(error_budget=0.5)
    pipe = numbers(config=config).map(odd_fails, on="i", name="odd_fails").batch(5)

    def begin(rank: int) -> Any:
        options: dict[str, Any] = {
            "rank": rank,
            "world_size": size,
            "job": f"cut-{size}-{most}",
            "on_error": "skip",
            "epochs": 2,
            **ONE_BY_ONE,
        }
        return pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), state=state, **options)

    with ThreadPoolExecutor(size) as pool:
        iterators = list(pool.map(begin, range(size)))
        seen = [i for some in pool.map(lambda it: ids(islice(it, most)), iterators) for i in some]
        states: list[Any] = []
        if most is not None:
            kill(living_worker("local", but=[]))
            states = list(pool.map(lambda it: saved(it.state_dict()), iterators))
        bad = iterators[0].report().bad_elements
        list(pool.map(lambda it: it.close(), iterators))
    return seen, bad, states


@pytest.mark.slow
def test_several_cuts_with_killed_workers_and_other_numbers_of_ranks_lose_and_repeat_nothing() -> None:
    seen: Counter[int] = Counter()
    state, counted, batches = None, 0, 0
    for size, most in ((2, 15), (1, 30), (3, 10), (2, None)):
        elements, bad, states = run_of(size, most, state)
        seen.update(elements)
        counted += bad
        if most is not None:
            assert states[1:] == states[:-1], "the states of all ranks are the same"
            state, batches = states[0], batches + most
            assert state["batches"] == batches
    good = [i for i in range(ROWS) if i % 50 != 49]
    assert set(seen) <= set(good) and max(seen.values()) <= 2
    assert 2 * len(good) - seen.total() <= 2 * 2, "but for what cannot be divided among the ranks"
    assert counted >= 2 * (ROWS - len(good))


KEEPER = """
import json
import signal
import sys
from itertools import islice

import pecan_ray as pecan
from tests.ray.test_state import BAD, ids, with_bad_ones
from tests.ray.waiting import until

batches = with_bad_ones(sys.argv[1], sys.argv[2]).iter_batches(
    epochs=2, workers=pecan.Workers(local=1), on_error="quarantine"
)
got = ids(islice(batches, 5))
until(lambda: batches.report().bad_elements == 2 * len(BAD), "not all was received")
print(json.dumps([got, batches.state_dict()]), flush=True)
signal.pause()  # until it is killed
"""


def with_bad_ones(kind: str, path: str) -> pecan.PecanPipeline:
    """A pipeline of which every fifth split is bad from its first element to its last, and other elements as well."""
    config = pecan.Config(error_budget=1.0, quarantine_path=path)
    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=20)
    pipe = pecan.PecanPipeline(source, name="keeper", config=config).map(often_fails, on="i")
    return pipe.batch(6) if kind == "cut" else pipe.take(ROWS).batch(6)


def often_fails(i: Any) -> Any:
    if i // 20 % 5 == 1 or i % 50 == 49:
        raise ValueError("no such luck")
    return i


BAD = [i for i in range(ROWS) if i // 20 % 5 == 1 or i % 50 == 49]


def kept(*paths: Path) -> Counter[tuple[int, int]]:
    """The elements that quarantine files hold, each with its epoch."""
    found = [one for path in paths if path.exists() for one in quarantined(path)]
    return Counter((one.origin.epoch, int(one.element["i"])) for one in found if one.origin is not None)


@pytest.mark.parametrize("kind", some_later(["cut", "whole"], "whole"))
def test_a_program_killed_behind_its_state_has_kept_each_bad_element_that_does_not_come_again(
    three_nodes: Any, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "bad.jsonl"
    environment = {**os.environ, "RAY_ADDRESS": three_nodes.address, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(
        [sys.executable, "-c", KEEPER, kind, str(path)], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        got, state = json.loads(program.stdout.readline())
    finally:
        program.kill()
        program.communicate()
    options: dict[str, Any] = {"epochs": 2, "workers": pecan.Workers(local=1), "on_error": "quarantine"}
    with with_bad_ones(kind, str(path)).iter_batches(state=state, **options) as it:
        got += ids(it)
    assert Counter(got) == Counter({i: 2 for i in range(ROWS) if i not in BAD})
    assert kept(path) == Counter((epoch, i) for epoch in range(2) for i in BAD)
    until(lambda: not living_actors(), "the program's job does not end")


@pytest.mark.slow
def test_bad_elements_of_a_plan_that_is_run_again_are_counted_and_kept_once(tmp_path: Path) -> None:
    def begin(name: str, state: Any = None) -> Any:
        pipe = with_bad_ones("whole", str(tmp_path / name))
        return pipe.iter_batches(workers=pecan.Workers(local=1), on_error="quarantine", state=state)

    with begin("first") as it:
        got = ids(islice(it, 60))
        until(lambda: it.report().bad_elements == len(BAD), "the end of the plan was not reached")
        state = saved(it.state_dict())
    with begin("second", state) as it:
        got += ids(it)
        assert it.report().bad_elements == 0
        again = [event.text for event in it.report().events if event.kind == "state"]
    assert got == [i for i in range(ROWS) if i not in BAD]
    assert kept(tmp_path / "first") == Counter((0, i) for i in BAD) and not kept(tmp_path / "second")
    assert len(again) == 1 and "60 batches of epoch 0 that were used before are made again" in again[0]


def test_states_of_ranks_out_of_step_are_merged_and_nothing_is_lost_or_comes_twice() -> None:
    pipe = numbers().shuffle(50).batch(5)

    def begin(rank: int, size: int, state: Any = None) -> Any:
        job = f"merged-{state is None}"
        return pipe.iter_batches(workers=pecan.Workers(local=1), rank=rank, world_size=size, job=job, state=state)

    taken = Barrier(2)

    def cut(rank: int) -> tuple[list[int], Any]:
        with begin(rank, 2) as it:
            cut_off = ids(islice(it, 7 + 3 * rank)), saved(it.state_dict())
            taken.wait(60)  # a rank that left would end the other
            return cut_off

    with ThreadPoolExecutor(2) as pool:
        (first, one), (second, other) = pool.map(cut, range(2))
    assert [one["batches"], other["batches"]] == [7, 10]
    with begin(0, 1, saved(pecan.merge_states([one, other]))) as it:
        assert sorted([*first, *second, *ids(it)]) == list(range(ROWS))


class PreemptedError(Exception):
    """What a signal's handler raises."""


def preempt(*_: object) -> None:
    raise PreemptedError


def test_a_signal_that_ends_a_wait_loses_no_place_and_a_closed_iterator_knows_its_last_state(tmp_path: Path) -> None:
    gate, begun, seen = tmp_path / "gate", tmp_path / "begun", list[int]()
    main = threading.main_thread().ident
    assert main is not None

    def held(i: Any) -> Any:
        while i >= 100 and not gate.exists():
            begun.touch()
            time.sleep(0.02)
        return i

    def signal_when_it_waits() -> None:
        until(begun.exists, "nothing is held")
        came = -1
        while came < len(seen) or sys._current_frames()[main].f_code is not Bell.wait.__code__:
            came = len(seen)
            time.sleep(0.5)  # all that is not held comes meanwhile, or comes while the loop waits
        signal.pthread_kill(main, signal.SIGUSR1)

    def read_on(batches: Any) -> None:
        for batch in batches:
            seen.extend(batch["i"].tolist())

    before = signal.signal(signal.SIGUSR1, preempt)
    pipe, workers = numbers().map(held, on="i").batch(10), pecan.Workers(local=1)
    try:
        with pipe.iter_batches(workers=workers, order="strict") as it:
            threading.Thread(target=signal_when_it_waits).start()
            with pytest.raises(PreemptedError):
                read_on(it)
            state = saved(it.state_dict())
            assert it.report().batches == state["batches"] == len(seen) // 10
            gate.touch()
            session = it._session
            assert isinstance(session, Session)
            until(lambda: session.client._for_loop.handed, "what was waited for does not come")
            assert saved(it.state_dict()) == state, "what nobody has got was not used"
            seen += ids(islice(it, 3))
    finally:
        signal.signal(signal.SIGUSR1, before)
    last = saved(it.state_dict())
    assert last["batches"] == it.report().batches == len(seen) // 10
    with pytest.raises(PlanError, match="only the last state is known"):
        it.state_dict(ahead=1)
    assert seen + ids(pipe.iter_batches(workers=workers, order="strict", state=last)) == list(range(ROWS))


def of_batches_of(size: int, epochs: int = 1) -> Any:
    """The state at the end of another run."""
    with numbers().batch(size).iter_batches(epochs=epochs, workers=pecan.Workers(local=1)) as it:
        assert len(ids(it)) == epochs * ROWS
        return saved(it.state_dict())


@pytest.mark.slow
def test_an_iterator_can_be_set_to_a_state_as_torch_does_it() -> None:
    pipe = numbers().batch(6)
    with pipe.iter_batches(workers=pecan.Workers(local=1)) as it:
        got = ids(islice(it, 30))
        state = it.state_dict()
        more = ids(islice(it, 5))
        with pytest.raises(StateError, match="damaged"):
            it.load_state_dict({**state, "epoch": 1})
        with pytest.raises(StateError, match=r"operator batch \(.*where this one has operator batch"):
            it.load_state_dict(of_batches_of(7))
        with pytest.raises(PlanError, match="in epoch 3 of epochs=1"):
            it.load_state_dict(of_batches_of(6, epochs=3))
        assert len(more) == 30 and len(ids(islice(it, 2))) == 12, "it runs on"
        it.load_state_dict(state)
        assert Counter(got + ids(it)) == Counter(range(ROWS))


@pytest.mark.slow
def test_data_that_has_changed_is_refused_and_told_where_it_is_allowed(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(50)))
    pipe = pecan.PecanPipeline(pecan.sources.TextLines(tmp_path), name="texts").batch(10)
    with pipe.iter_batches(workers=pecan.Workers(local=1)) as it:
        next(it)
        state = it.state_dict()
    (tmp_path / "2.txt").write_text("".join(f"2-{line}!\n" for line in range(50)))
    with pytest.raises(StateError, match=r"changed since the state.*allow_changed_source=True"):
        list(pipe.iter_batches(workers=pecan.Workers(local=1), state=state))
    with pipe.iter_batches(workers=pecan.Workers(local=1), state=state, allow_changed_source=True) as it:
        assert sum(len(batch["text"]) for batch in it) == 190
        until(lambda: any(e.kind == "state" for e in it.report().events), "nothing was told of the change")
