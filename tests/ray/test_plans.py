"""Plans of every shape on local and remote workers: what one process yields, several workers yield too."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.seeds_at_import import draw
from tests.ray.workers import ONE_BY_ONE, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

WORKERS = pecan.Workers(local=1, remote=1)
Pipe = pecan.PecanPipeline


def numbers(rows: int = 200, start: int = 0) -> Pipe:
    return Pipe(pecan.sources.Arrays(i=np.arange(start, start + rows)), name="plan")


def doubled(element: Any) -> list[Any]:
    return [element, element]


def content(batches: Any) -> Counter[int]:
    return Counter(int(i) for batch in batches for i in np.ravel(batch["i"]))


def test_several_workers_yield_what_one_process_yields() -> None:
    pipe = numbers().filter(lambda i: i % 3 > 0, on="i").flat_map(doubled).concat(numbers(50, 1000))
    pipe = pipe.mix(numbers(50, 2000), weights=[1, 2]).repeat(3).shuffle(30).batch(8)
    pipe = pipe.map(lambda b: {"i": b["i"] + 1}, name="next").unbatch().batch(7)
    expected = list(pipe.iter_batches(debug=True))
    with pipe.iter_batches(epochs=2, workers=WORKERS) as it:
        batches = list(it)
    assert content(batches) == content(expected * 2)
    assert len(batches) == 2 * len(expected)


def wide(i: Any) -> Any:
    """Return so much that a batch of four travels alone: few are ahead of the trainer."""
    return np.full(1 << 14, i)


def firsts(batch: Any) -> list[int]:
    """Return the numbers of the elements that `wide` has made."""
    return [int(i) for i in batch["i"][:, 0]]


def twice_and_back(batch: Any) -> Any:
    """Return other rows than elements, in another order."""
    return {"i": np.repeat(batch["i"], 2, axis=0)[::-1]}


def test_a_plan_that_needs_the_whole_sequence_survives_its_worker() -> None:
    pipe = numbers(70).map(wide, on="i").batch(30).map(twice_and_back).unbatch().batch(4)
    expected = [firsts(batch) for batch in pipe.iter_batches(debug=True)]
    found = []
    with pipe.iter_batches(epochs=2, workers=WORKERS, **ONE_BY_ONE) as it:
        for number, batch in enumerate(it):
            found.append(firsts(batch))
            if number in (5, len(expected) + 5):
                lose(it, maker(it))
        assert it.report().workers_lost == 2
    assert found == expected * 2


def test_workers_draw_numbers_of_their_own_though_a_module_seeds_when_it_is_imported() -> None:
    with numbers().map(draw, on="i").batch(8).iter_batches(epochs=2, workers=WORKERS) as it:
        drawn = content(it)
    assert (len(drawn), drawn.total()) == (400, 400)


def train_and_kill(rank: int, kills: tuple[int, ...]) -> tuple[list[list[int]], int]:
    """Train as one of two ranks, and kill the worker that made the batch at some of the steps."""
    batches = []
    options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "take-killed", **ONE_BY_ONE}
    pipe = numbers().map(wide, on="i").take(120).batch(4)
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1), **options) as it:
        for step, batch in enumerate(it):
            batches.append(firsts(batch))
            if step in kills:
                lose(it, maker(it))
        return batches, it.report().workers_lost


def test_trainers_that_share_such_a_plan_lose_and_repeat_nothing_with_its_worker() -> None:
    with ThreadPoolExecutor(2) as pool:
        (first, _), (second, lost) = pool.map(train_and_kill, range(2), ((4, 19), ()))
    assert lost == 2
    assert len(first) == len(second) == 30
    assert Counter(i for batch in first + second for i in batch) == Counter(list(range(120)) * 2)
