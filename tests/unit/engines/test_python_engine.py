"""The python engine, driven directly: which data comes out, in which order, and that each position counts once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.python import feed
from pecan_ray.engines.python.feed import MOST_PER_CHUNK, MOST_READY
from pecan_ray.engines.python.threads import AHEAD
from pecan_ray.errors import OpError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sources import Arrays, Items
from tests.long_form import examples
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import (
    Blocking,
    FewSlots,
    ListedLeases,
    column,
    delivered,
    missing,
    numbers,
    run_engine,
    running,
    whole_leases,
)
from tests.unit.engines.operator_cases import spread, three_rows

ORDERS = ("relaxed", "strict")
DEADLINE_S = 20.0
"""How long a test waits for a thread before it fails."""


def add_one(i: Any) -> Any:
    return i + 1


def test_a_slow_element_joins_a_later_batch_in_relaxed_order() -> None:
    gate = Blocking(0)
    with running(numbers(40).map(gate, on="i").batch(4), threads=3) as (_, batches):
        early = [next(batches) for _ in range(5)]
        assert 0 not in column(early, "i")
        gate.may_go_on.set()
        late = list(batches)
    assert sorted(column([*early, *late], "i")) == list(range(40)) and 0 in column(late, "i")


def test_a_slow_element_holds_the_sequence_in_strict_order_and_what_overtakes_it_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "EARLY_BYTES", 100_000)
    gate, done, looks = Blocking(0), list[int](), list[int]()

    def noted(i: Any) -> Any:
        done.append(int(i))
        return gate(i)

    def stands_still() -> bool:
        looks.append(len(done))
        return looks[-5:] == 5 * looks[-1:]

    pipe, most = numbers(20_000, 500).map(noted, on="i").batch(100), MOST_PER_CHUNK * (2 * 3 + 2)
    with running(pipe, threads=3, order="strict") as (_, batches), ThreadPoolExecutor(1) as waiting:
        first = waiting.submit(next, batches)
        until(lambda: len(done) > 8, "the other threads did not go on")
        until(stands_still, "elements pile up behind a slow one")
        assert not first.done() and len(done) <= most
        gate.may_go_on.set()
        assert column([first.result(DEADLINE_S), *batches], "i") == list(range(20_000))


def is_even(i: Any) -> bool:
    return bool(i % 2 == 0)


def not_multiple_of_three(element: dict[str, Any]) -> bool:
    return bool((element["i"] + element.get("part", 0)) % 3 != 0)


Rows = list[dict[str, Any]]
STEPS: dict[str, tuple[Callable[[PecanPipeline], PecanPipeline], Callable[[Rows], Rows]]] = {
    "map": (lambda pipe: pipe.map(add_one, on="i"), lambda rows: [{**row, "i": row["i"] + 1} for row in rows]),
    "filter": (lambda pipe: pipe.filter(is_even, on="i"), lambda rows: [row for row in rows if is_even(row["i"])]),
    "filter parts": (
        lambda pipe: pipe.filter(not_multiple_of_three),
        lambda rows: [*filter(not_multiple_of_three, rows)],
    ),
    "flat_map": (lambda pipe: pipe.flat_map(spread), lambda rows: [part for row in rows for part in spread(row)]),
    "shuffle": (lambda pipe: pipe.shuffle(7), lambda rows: rows),
    "prefetch": (lambda pipe: pipe.prefetch(2), lambda rows: rows),
    "unbatch": (lambda pipe: pipe.batch(3).unbatch(), lambda rows: rows),
    "same rows": (
        lambda pipe: pipe.map(add_one, on="i", rows=3),
        lambda rows: [{**row, "i": row["i"] + 1} for row in rows],
    ),
    "rows of elements": (
        lambda pipe: pipe.map(three_rows).unbatch(),
        lambda rows: [row for row in rows for _ in range(3)],
    ),
}
"""Steps that many workers can share, each as the pipeline has it and as what it does to a list of elements."""


@dataclass(frozen=True)
class Case:
    pipe: PecanPipeline
    rows: Rows


def built(steps: list[str], rows: int, split_rows: int, batch: int) -> Case:
    pipe = numbers(rows, split_rows)
    expected: Rows = [{"i": i} for i in range(rows)]
    for step in steps:
        extend, model = STEPS[step]
        pipe, expected = extend(pipe), model(expected)
    return Case(pipe.batch(batch) if batch else pipe, expected)


cases = st.builds(
    built,
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    rows=st.integers(1, 40),
    split_rows=st.integers(1, 15),
    batch=st.integers(0, 3),
)
options = st.fixed_dictionaries({"threads": st.integers(1, 3), "order": st.sampled_from(ORDERS)})


@examples(150)
@given(cases, options, options, st.randoms(use_true_random=False))
def test_every_position_is_carried_once_and_what_was_not_acknowledged_is_produced_again(
    case: Case, first: dict[str, Any], later: dict[str, Any], chance: Random
) -> None:
    leases = ListedLeases(whole_leases(tuple(case.pipe.plan.sources())))
    produced = run_engine(case.pipe, leases, **first)
    assert counted_rows(produced) == Counter(map(as_tuple, case.rows))
    assert delivered(produced) == leases.target()
    assert leases.lengths == {lease.key: lease.split.elements for lease in leases.given}
    received = [batch for batch in produced if chance.random() < 0.5]
    again = run_engine(case.pipe, missing(leases, received), **later)
    assert counted_rows([*received, *again]) == Counter(map(as_tuple, case.rows))
    assert delivered([*received, *again]) == leases.target()


def counted_rows(produced: list[Produced]) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    for batch in produced:
        columns = {name: np.atleast_1d(values).tolist() for name, values in batch.columns.items()}
        rows.update(as_tuple(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True))
    return rows


def as_tuple(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(row.items()))


def test_positions_without_data_come_at_last_and_a_length_is_reported_if_the_split_was_read_to_its_end() -> None:
    (rest,) = run_engine(numbers(7).filter(lambda i: False, on="i").batch(5))
    assert (rest.rows, rest.partial, rest.columns) == (0, False, {})
    assert delivered([rest])[0, 0, 0].contains_all(0, 7 << OUTPUT_BITS)
    assert run_engine(numbers(7).batch(2), []) == [], "nothing comes of no lease"
    (split,) = Arrays(i=np.arange(6), split_rows=6).splits()
    for stop, rows, lengths in ((END, [2, 3, 4, 5], {(0, 0, 0): 6}), (4 << OUTPUT_BITS, [2, 3], {})):
        leases = ListedLeases([Lease(0, split, ((2 << OUTPUT_BITS, stop),))])
        assert column(run_engine(numbers(6, 6).batch(2), leases)) == rows
        assert leases.lengths == lengths


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("pecan_", "pecan-read"))]


def test_threads_end_with_an_error_and_when_a_run_is_left_early() -> None:
    until(lambda: not engine_threads(), "threads of an earlier test still run")

    def fail(i: Any) -> Any:
        if i == 17:
            raise ValueError("seventeen")
        return i

    with pytest.raises(OpError, match=r"fail failed on element 7 of split 1: ValueError: seventeen"):
        run_engine(numbers(1000).map(fail, on="i").batch(4), threads=2)
    until(lambda: not engine_threads(), "threads still run after an error")
    with running(numbers(100_000, 1000).map(add_one, on="i").batch(4), threads=3) as (_, batches):
        next(batches)
        batches.close()
        until(lambda: "pecan-read" not in engine_threads(), "the reading thread still runs")
    until(lambda: not engine_threads(), "threads of the pool still run")


def test_reading_pauses_while_finished_batches_wait() -> None:
    read: list[int] = []
    pipe = PecanPipeline(Items(["x"] * 5_000, split_rows=1000))
    in_progress = MOST_PER_CHUNK * (2 * 2 + AHEAD)

    def noted(text: str) -> str:
        read.append(1)
        return text

    with running(pipe.map(noted, on="item").batch(1), threads=2) as (_, batches):
        for taken, _batch in enumerate(batches):
            assert len(read) <= taken + MOST_READY + in_progress + MOST_PER_CHUNK
    assert len(read) == 5_000


@pytest.mark.parametrize("order", ORDERS)
def test_a_chunk_of_elements_may_need_more_batches_than_there_is_memory(order: Any) -> None:
    seen: list[int] = []
    with running(numbers(3000, 1000).batch(2), slots=FewSlots(2), threads=2, order=order) as (_, batches):
        for batch in batches:
            seen += batch.columns["i"].tolist()
            assert batch.slot is not None
            batch.slot.release()
    assert sorted(seen) == list(range(3000))
