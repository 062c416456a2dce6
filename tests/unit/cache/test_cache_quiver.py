"""Quiver: what is cached of which dataset, as in its own experiments, and substitutable hits.

Every item comes once an epoch, cached ones first, at random within a chunk, and fetched together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduction.quiver_benefit import ProbedJob, benefit, choose_caching, chunk_bytes
from benchmarks.reproduction.quiver_figures import fetched_together
from benchmarks.reproduction.reported_caches import QUIVER_DATASETS, QUIVER_TABLE3
from pecan_ray.cache import SubstitutionSampler
from tests.long_form import examples

JOBS = [
    ProbedJob(f"{name} {number}", name, miss / 7000, hit / 7000, shared / 7000, gpus=4)
    for name, (miss, hit, shared) in QUIVER_TABLE3.items()
    for number in range(4)
]
GIB = 2**30


@pytest.mark.parametrize(
    ("cache_gib", "whole", "two"),
    [
        (0, set(), set()),
        (100, set(), set(QUIVER_DATASETS)),
        (200, {"ResNet50"}, {"Inception", "DeepSpeech"}),
        (700, {"ResNet50", "Inception"}, {"DeepSpeech"}),
        (800, set(QUIVER_DATASETS), set()),
    ],
)
def test_quivers_choices_by_the_size_of_the_cache(cache_gib: float, whole: set[str], two: set[str]) -> None:
    """Section 7.6 tells those at 100, 200 and 700."""
    found = choose_caching(JOBS, QUIVER_DATASETS, cache_gib * GIB)
    assert {name for name, choice in found.items() if choice.part == "whole"} == whole
    assert {name for name, choice in found.items() if choice.part == "two chunks"} == two
    assert sum(choice.nbytes for choice in found.values()) <= cache_gib * GIB


def test_the_benefit_is_that_of_the_gpus() -> None:
    assert benefit(2505, 646, 4) == pytest.approx(4 * 3.88, rel=1e-3)
    assert benefit(1.0, 1.0) == 1.0
    assert choose_caching(JOBS, QUIVER_DATASETS, 1e12)["ResNet50"].benefit == pytest.approx(4 * 4 * 2.88, rel=2e-3)
    assert (chunk_bytes(90e9), chunk_bytes(531e9)) == (9e9, 15e9), "a tenth, and at most 15 GB"


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.floats(1, 9), st.floats(1, 9), st.integers(1, 8)), max_size=8),
    st.floats(0, 400),
)
@examples(200)
def test_never_more_than_there_is_and_never_for_nothing(rows: list[tuple[str, float, float, int]], room: float) -> None:
    jobs = [ProbedJob(str(n), name, miss, min(miss, hit), None, gpus) for n, (name, miss, hit, gpus) in enumerate(rows)]
    jobs = [replace(job, shared_s=(job.miss_s + job.hit_s) / 2) for job in jobs]
    found = choose_caching(jobs, {"x": 100.0, "y": 50.0, "z": 200.0}, room)
    assert sum(choice.nbytes for choice in found.values()) <= room
    assert all((choice.benefit > 0) == (choice.part != "none") == (choice.nbytes > 0) for choice in found.values())


# --- hits ------------------------------------------------------------------------------------------------------


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


def test_jobs_with_a_fifth_of_the_data_cached_fetch_it_once_for_all() -> None:
    assert 1.0 <= fetched_together(jobs=4) <= 1.15
