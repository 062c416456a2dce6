"""Quiver's substitutable hits: every item once an epoch, cached ones first, at random in a chunk, fetched together."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduction.quiver_figures import fetched_together
from pecan_ray.cache import SubstitutionSampler
from tests.long_form import examples

# --- hits ------------------------------------------------------------------------------------------------------


def epoch_of(sampler: SubstitutionSampler, size: int, cached: set[int]) -> list[int]:
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


def test_jobs_with_a_fifth_of_the_data_cached_fetch_it_once_for_all() -> None:
    assert 1.0 <= fetched_together(jobs=4) <= 1.15
