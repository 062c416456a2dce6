"""What is cached of which dataset: Quiver's choices in its own experiments, and limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import ProbedJob, benefit, choose_caching
from pecan_ray.cache.benefit import chunk_bytes
from pecan_ray.errors import PlanError
from tests.long_form import examples

SIZES = {"imagenet": 154e9, "openimages": 531e9, "librispeech": 90e9}
TABLE_3 = {
    "imagenet": (2505.0, 646.0, 1064.0),
    "openimages": (2874.0, 1274.0, 1817.0),
    "librispeech": (1614.0, 1234.0, 1265.0),
}
"""Quiver's Table 3: seconds of 7,000 mini-batches that miss, that hit, and that are fetched together."""
JOBS = [
    ProbedJob(f"{name} {number}", name, miss / 7000, hit / 7000, shared / 7000, gpus=4)
    for name, (miss, hit, shared) in TABLE_3.items()
    for number in range(4)
]
GIB = 2**30


@pytest.mark.parametrize(
    ("cache_gib", "whole", "two"),
    [
        (0, set(), set()),
        (100, set(), set(SIZES)),
        (200, {"imagenet"}, {"openimages", "librispeech"}),
        (700, {"imagenet", "openimages"}, {"librispeech"}),
        (800, set(SIZES), set()),
    ],
)
def test_quivers_choices_by_the_size_of_the_cache(cache_gib: float, whole: set[str], two: set[str]) -> None:
    """Section 7.6 tells those at 100, 200 and 700."""
    found = choose_caching(JOBS, SIZES, cache_gib * GIB)
    assert {name for name, choice in found.items() if choice.part == "whole"} == whole
    assert {name for name, choice in found.items() if choice.part == "two chunks"} == two
    assert sum(choice.nbytes for choice in found.values()) <= cache_gib * GIB


def test_the_benefit_is_that_of_the_gpus() -> None:
    assert benefit(2505, 646, 4) == pytest.approx(4 * 3.88, rel=1e-3)
    assert benefit(1.0, 1.0) == 1.0
    assert choose_caching(JOBS, SIZES, 1e12)["imagenet"].benefit == pytest.approx(4 * 4 * 2.88, rel=2e-3)
    assert (chunk_bytes(90e9), chunk_bytes(531e9)) == (9e9, 15e9), "a tenth, and at most 15 GB"


def test_what_gains_most_for_its_bytes_is_cached_and_what_gains_nothing_or_does_not_fit_is_not() -> None:
    jobs = [ProbedJob("a", "x", 1.04, 1.0), ProbedJob("b", "y", 1.5, 1.0)]
    found = choose_caching(jobs, {"x": 10.0, "y": 1000.0, "read by nobody": 1.0}, 1e4)
    assert [choice.part for choice in found.values()] == ["none", "whole", "none"]
    alone = choose_caching([ProbedJob("a", "x", 4.0, 1.0)], {"x": 100.0}, 99.0)["x"]
    assert (alone.part, alone.nbytes) == ("none", 0), "a job alone gains nothing from two chunks"
    job = ProbedJob("a", "x", 9.0, 1.0, shared_s=4.5)
    assert choose_caching([job], {"x": 100.0}, 150.0)["x"].part == "whole"
    assert choose_caching([job], {"x": 100.0}, 99.0)["x"].part == "two chunks"
    jobs = [ProbedJob("a", "x", 9.0, 1.0), ProbedJob("b", "y", 2.0, 1.0)]
    found = choose_caching(jobs, {"x": 100.0, "y": 50.0}, 60.0)
    assert (found["x"].part, found["y"].part) == ("none", "whole")


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


def test_nonsense_is_refused_by_name() -> None:
    for seconds in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(PlanError, match="miss_s"):
            benefit(seconds, 1.0)
        with pytest.raises(PlanError, match="'a': shared_s"):
            ProbedJob("a", "x", 1.0, 1.0, seconds)
    with pytest.raises(PlanError, match="job 'a' reads dataset 'x', whose size is not said"):
        choose_caching([ProbedJob("a", "x", 2.0, 1.0)], {"y": 1.0}, 1.0)
    with pytest.raises(PlanError, match="dataset 'y'"):
        choose_caching([], {"y": 0.0}, 1.0)
