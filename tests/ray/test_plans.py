"""Plans of every shape on local and remote workers: what one process yields, several workers yield too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.long_form import some_later
from tests.ray.seeds_at_import import draw
from tests.ray.workers import ONE_BY_ONE, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

WORKERS = pecan.Workers(local=1, remote=1)
Pipe = pecan.PecanPipeline


def numbers(rows: int = 200, start: int = 0) -> Pipe:
    return Pipe(pecan.sources.Arrays(i=np.arange(start, start + rows)), name="plan")


def doubled(element: Any) -> list[Any]:
    return [element, element]


MANY = "many operators"
"""At once: each of them alone is in the long form."""
PLANS: dict[str, Callable[[], Pipe]] = {
    "filter and flat_map": lambda: numbers().filter(lambda i: i % 3 > 0, on="i").flat_map(doubled).batch(7),
    "repeat": lambda: numbers().repeat(3).batch(7),
    "concat": lambda: numbers().concat(numbers(50, 1000)).batch(7),
    "mix": lambda: numbers().mix(numbers(50, 1000), weights=[1, 2]).batch(7),
    "shuffle": lambda: numbers().shuffle(30).batch(7),
    "padded": lambda: numbers().map(lambda i: np.arange(i % 5), on="i").padded_batch(7, padding=-1),
    "unbatch": lambda: numbers().batch(8).map(lambda b: {"i": b["i"] + 1}, name="next").unbatch().batch(7),
    "no batch": lambda: numbers().map(lambda i: i + 1, on="i", name="next"),
    "part of a split": lambda: pecan.split(numbers(), [0.7, 0.3], seed=1)[0].shuffle(30).batch(7),
    "drop remainder": lambda: numbers(203).batch(8, drop_remainder=True),
    MANY: lambda: (
        numbers()
        .filter(lambda i: i % 3 > 0, on="i")
        .flat_map(doubled)
        .concat(numbers(50, 1000))
        .mix(numbers(50, 2000), weights=[1, 2])
        .repeat(3)
        .shuffle(30)
        .batch(8)
        .map(lambda b: {"i": b["i"] + 1}, name="next")
        .unbatch()
        .batch(7)
    ),
}


def content(batches: Any) -> Counter[int]:
    return Counter(int(i) for batch in batches for i in np.ravel(batch["i"]))


@pytest.mark.parametrize("plan", some_later(PLANS, *(plan for plan in PLANS if plan != MANY)))
def test_several_workers_yield_what_one_process_yields(plan: str) -> None:
    pipe = PLANS[plan]()
    expected = list(pipe.iter_batches(debug=True))
    with pipe.iter_batches(epochs=2, workers=WORKERS) as it:
        batches = list(it)
    if plan == "padded":
        trimmed = [{"i": batch["i"][batch["i"] >= 0]} for batch in batches]
        assert content(trimmed) == content([{"i": b["i"][b["i"] >= 0]} for b in expected] * 2)
    elif plan == "drop remainder":
        assert len(batches) == 2 * len(expected) and all(len(batch["i"]) == 8 for batch in batches)
        assert max(content(batches).values()) <= 2
    else:
        assert content(batches) == content(expected * 2)
    assert len(batches) == 2 * len(expected)


@pytest.mark.slow
def test_a_shuffle_changes_neither_what_is_taken_nor_what_is_paired_before_it() -> None:
    pairs = numbers().zip(Pipe(pecan.sources.Arrays({"j": np.arange(200)}, split_rows=7))).shuffle(30).batch(7)
    with pairs.iter_batches(epochs=2, workers=WORKERS) as it:
        pairs_seen = [pair for batch in it for pair in zip(batch["i"], batch["j"], strict=True)]
    assert len(pairs_seen) == 400 and all(i == j for i, j in pairs_seen)
    parts = {"first": numbers().take(40).shuffle(30).batch(7), "rest": numbers().skip(40).shuffle(30).batch(7)}
    for part, expected in (("first", range(40)), ("rest", range(40, 200))):
        with parts[part].iter_batches(epochs=2, workers=WORKERS) as it:
            assert content(it) == Counter([*expected] * 2)


def wide(i: Any) -> Any:
    """Return so much that a batch of four travels alone: few are ahead of the trainer."""
    return np.full(1 << 14, i)


def firsts(batch: Any) -> list[int]:
    """Return the numbers of the elements that `wide` has made."""
    return [int(i) for i in batch["i"][:, 0]]


def twice_and_back(batch: Any) -> Any:
    """Return other rows than elements, in another order."""
    return {"i": np.repeat(batch["i"], 2, axis=0)[::-1]}


WHOLE: dict[str, Callable[[], Pipe]] = {
    "take": lambda: numbers(2000).map(wide, on="i").take(130).batch(4),
    "skip": lambda: numbers().map(wide, on="i").skip(70).batch(4),
    "zip": lambda: numbers().map(wide, on="i").zip(Pipe(pecan.sources.Arrays(j=np.arange(150)))).batch(4),
    "repeated": lambda: numbers().map(wide, on="i").take(66).repeat(2).batch(4),
    "take of batches": lambda: numbers().map(wide, on="i").batch(4).take(33),
    "other rows": lambda: numbers(70).map(wide, on="i").batch(30).map(twice_and_back).unbatch().batch(4),
}


@pytest.mark.parametrize("plan", some_later(WHOLE, "take", "skip", "zip", "repeated", "take of batches"))
def test_plans_that_need_the_whole_sequence_survive_their_worker(plan: str) -> None:
    pipe = WHOLE[plan]()
    expected = [firsts(batch) for batch in pipe.iter_batches(debug=True)]
    found = []
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1, remote=1), **ONE_BY_ONE) as it:
        for number, batch in enumerate(it):
            found.append(firsts(batch))
            if number in (5, len(expected) + 5):
                lose(it, maker(it))
        assert it.report().workers_lost == 2
    assert found == expected * 2


def document(i: Any) -> Any:
    """Return the tokens of a document, of which some are longer than a row."""
    return 1000 * i + np.arange(i * 37 % 150)


def beside(row: Any) -> Any:
    """Add as much as `wide` makes of a number."""
    return {**row, "wide": np.zeros(1 << 14)}


@pytest.mark.slow
def test_packed_rows_survive_their_worker_and_go_on_from_a_state() -> None:
    pipe = numbers(150).map(document, on="i").pack(64, on="i", among=50).map(beside).batch(4)
    tokens: Counter[int] = Counter()
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), **ONE_BY_ONE) as it:
        for number, batch in zip(range(20), it, strict=False):
            tokens.update(batch["i"][batch["segment"] > 0].tolist())
            if number == 5:
                lose(it, maker(it))
        state = it.state_dict()
    with pipe.iter_batches(workers=pecan.Workers(local=1), state=state) as it:
        for batch in it:
            tokens.update(batch["i"][batch["segment"] > 0].tolist())
    assert tokens == Counter(int(token) for i in range(150) for token in document(i))


def test_workers_draw_numbers_of_their_own_though_a_module_seeds_when_it_is_imported() -> None:
    with numbers().map(draw, on="i").batch(8).iter_batches(epochs=2, workers=WORKERS) as it:
        drawn = content(it)
    assert (len(drawn), drawn.total()) == (400, 400)


SHARED: dict[str, Callable[[], Pipe]] = {
    "take": lambda: numbers().map(wide, on="i").take(120).batch(4),
    "zip": lambda: numbers(120).map(wide, on="i").zip(Pipe(pecan.sources.Arrays(j=np.arange(150)))).batch(4),
}


def train_and_kill(plan: str, rank: int, kills: tuple[int, ...]) -> tuple[list[list[int]], int]:
    """Train as one of two ranks, and kill the worker that made the batch at some of the steps."""
    batches = []
    options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": f"{plan}-killed", **ONE_BY_ONE}
    with SHARED[plan]().iter_batches(epochs=2, workers=pecan.Workers(local=1), **options) as it:
        for step, batch in enumerate(it):
            batches.append(firsts(batch))
            if step in kills:
                lose(it, maker(it))
        return batches, it.report().workers_lost


@pytest.mark.parametrize("plan", some_later(SHARED, "zip"))
def test_trainers_that_share_such_a_plan_lose_and_repeat_nothing_with_its_worker(plan: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        (first, _), (second, lost) = pool.map(lambda rank: train_and_kill(plan, rank, ((4, 19), ())[rank]), range(2))
    assert lost == 2
    assert len(first) == len(second) == 30
    assert Counter(i for batch in first + second for i in batch) == Counter(list(range(120)) * 2)
