"""Substitutable hits: every item once an epoch, cached ones first, at random within a chunk, and fetched together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import SubstitutionSampler
from pecan_ray.errors import PlanError
from tests.long_form import examples


def epoch_of(sampler: SubstitutionSampler, size: int, cached: set[int]) -> list[int]:
    """Everything that one epoch gives."""
    items: list[int] = []
    while batch := sampler.next_batch(size, cached):
        items += batch
    return items


@given(st.data())
@examples(200)
def test_every_item_comes_exactly_once_an_epoch_whatever_is_cached(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 200))
    sampler = SubstitutionSampler(count, data.draw(st.integers(1, min(count, 12))), data.draw(st.integers(0, 9)))
    for _ in range(2):
        left = set(range(count))
        while left:
            size = data.draw(st.integers(1, 40))
            batch = sampler.next_batch(size, data.draw(st.sets(st.integers(-5, count + 5), max_size=60)))
            assert len(batch) == min(size, len(left)) and left.issuperset(batch)
            left -= set(batch)
            assert sampler.pending == left
        assert not sampler.pending
        assert sampler.next_batch(3, set()) == [] and not sampler.pending


def test_items_come_in_any_order_equally_often() -> None:
    """Over 500 seeds each of the ten items that are cached stands at each place 50 times, give or take chance."""
    cached_chunk = 4
    fetched = Counter(SubstitutionSampler(60, 6, seed).next_batch(1, set())[0] for seed in range(1200))
    assert set(fetched) == set(SubstitutionSampler(60, 6, 0).items_of(0)), "with nothing cached the first chunk is read"
    assert sum((count - 100) ** 2 / 100 for count in fetched.values()) < 37, "11 degrees of freedom: 1 of 10,000"
    places = np.zeros((10, 10))
    for seed in range(500):
        sampler = SubstitutionSampler(100, 10, seed)
        members = sorted(sampler.items_of(cached_chunk))
        order = [item for item in epoch_of(sampler, 2, set(members)) if item in members]
        for place, item in enumerate(order):
            places[members.index(item), place] += 1
    assert places.sum() == 5_000
    chi_square = float(((places - 50) ** 2 / 50).sum())
    assert chi_square < 140, "81 degrees of freedom: 1 of 20,000 samples is above"


def test_epochs_and_seeds_differ_and_are_repeatable() -> None:
    first, again, other = (SubstitutionSampler(500, 5, seed) for seed in (1, 1, 2))
    epochs = [epoch_of(first, 10, set()) for _ in range(2)]
    assert epochs == [epoch_of(again, 10, set()) for _ in range(2)]
    assert epochs[0] != epochs[1] and epochs[0] != epoch_of(other, 10, set())


def remote_reads(jobs: int, size: int, items: int = 10_000, chunks: int = 10, epochs: int = 2) -> float:
    """Let jobs read in step through a cache of two chunks; passes over the data that remote storage has to give.

    Batches of one step are asked for before any of them is fetched.  When a third chunk is begun the oldest one goes.
    """
    samplers = [SubstitutionSampler(items, chunks, seed) for seed in range(jobs)]
    seen = [Counter[int]() for _ in samplers]
    cached: set[int] = set()
    loaded: list[int] = []
    fetched = 0
    ended = [0] * jobs
    while min(ended) < epochs:
        batches = [
            sampler.next_batch(size, cached) if done < epochs else []
            for sampler, done in zip(samplers, ended, strict=True)
        ]
        for job, batch in enumerate(batches):
            ended[job] += not batch
            seen[job].update(batch)
        missed = [item for batch in batches for item in batch if item not in cached]
        fetched += len(missed)
        for item in missed:
            chunk = samplers[0].chunk_of(item)
            if chunk not in loaded:
                loaded.append(chunk)
                if len(loaded) > 2:
                    cached -= samplers[0].items_of(loaded.pop(0))
            cached.add(item)
    assert all(counts == dict.fromkeys(range(items), epochs) for counts in seen)
    return fetched / items / epochs


@pytest.mark.parametrize(("jobs", "size"), [(4, 50), (4, 10)])
def test_jobs_with_a_fifth_of_the_data_cached_fetch_it_once_for_all(jobs: int, size: int) -> None:
    assert remote_reads(jobs, size) <= 1.15


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (lambda: SubstitutionSampler(0, 1, 0), "num_items"),
        (lambda: SubstitutionSampler(5, 6, 0), "no more than 5 items"),
        (lambda: SubstitutionSampler(5, 2, -1), "seed"),
        (lambda: SubstitutionSampler(5, 2, 0).next_batch(0, set()), "size"),
        (lambda: SubstitutionSampler(5, 2, 0).next_batch(1, cast(Any, [1, 2])), "item numbers, but got list"),
        (lambda: SubstitutionSampler(5, 2, 0).items_of(2), "from 0 to 1"),
    ],
)
def test_nonsense_is_refused(asks: Callable[[], object], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        asks()
