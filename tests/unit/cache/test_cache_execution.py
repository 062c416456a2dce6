"""What is kept: Cachew's formula by hand, limits of storage, nearly the best choice; the model of a store."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import (
    CachePoint,
    ExecutionProfile,
    OperatorCost,
    SourceCost,
    StoreModel,
    StoreRead,
    choose_execution,
)
from pecan_ray.cache.execution import ExecutionPlace, shared_seconds
from tests.long_form import examples


def pipeline(*seconds: float) -> ExecutionProfile:
    """Operators a, b, ... of 100 KB each with a point behind every one, 1,000 elements; reading takes 1 ms."""
    names = "abcdef"[: len(seconds)]
    ops = tuple(OperatorCost(name, one, 1e5) for name, one in zip(names, seconds, strict=True))
    points = tuple(CachePoint(f"behind_{name}", behind=name) for name in names)
    return ExecutionProfile(SourceCost(1e-3, 1e5), ops, points, elements=1000, splits=10)


def test_one_thread_that_never_waits_gets_cachews_sum() -> None:
    """N t_last; and M g(b) + N t_last - M t_point for the source and each point, by hand."""
    profile = pipeline(2e-3, 4e-3)
    choice = choose_execution(profile, StoreModel(latency_s=0.01, per_element_s=1e-4, per_byte_s=1e-8))
    reading = 10 * 0.01 + 1000 * 1e-4 + 1000 * 1e5 * 1e-8
    places = ("compute", None), ("source", None), ("point", "behind_a"), ("full", "behind_b")
    assert tuple((option.mode, option.point) for option in choice.options) == places
    assert [option.seconds for option in choice.options] == pytest.approx([7, reading + 6, reading + 4, reading])
    assert (choice.mode, choice.point) == ("full", "behind_b") and choice.seconds == pytest.approx(reading)
    assert not choice.remote and [option.nbytes for option in choice.options] == [0.0, 1e8, 1e8, 1e8]
    assert "full cache at 'behind_b': 1.2 s an epoch (reading 1.2 s" in choice.reason
    assert "against compute 7.0 s, source cache 7.2 s, cache at 'behind_a' 5.2 s." in choice.reason
    unmarked = choose_execution(replace(profile, points=()), StoreModel())
    assert (unmarked.mode, unmarked.point, len(unmarked.options), unmarked.remote) == ("compute", None, 1, False)
    assert "no autocache point is marked" in unmarked.reason
    assert choose_execution(replace(profile, batches=100), StoreModel()).seconds == 0.0, "batches cost what is given"


def test_splits_that_are_too_large_for_an_entry_are_computed() -> None:
    """Splits of 100 elements with 100 KB each; of a hundred and a single one the hundred are most of the bytes."""
    profile, store, most = replace(pipeline(9e-3), split_elements=(100.0,) * 10), StoreModel(per_byte_s=1e-9), 1e7
    assert choose_execution(profile, store, most_entry_bytes=most) == choose_execution(profile, store)
    took: dict[ExecutionPlace, float] = {("full", "behind_a"): 0.1}
    for remote, measured in ((None, None), (store, None), (None, took)):
        none = choose_execution(profile, store, most_entry_bytes=most - 1, remote=remote, measured=measured)
        assert none.mode == "compute" and [option.share for option in none.options[1:]] == [0.0, 0.0]
        assert {option.seconds for option in none.options} == {10.0} and not none.remote
        assert "nothing of it can be kept" in none.warnings[-1] and "'behind_a'" in none.warnings[-1]
    uneven = replace(profile, split_elements=(100.0, 20.0))
    part = choose_execution(uneven, store, most_entry_bytes=most - 1)
    assert part.mode == "full" and part.options[-1].share == pytest.approx(1 / 6)
    assert part.seconds == pytest.approx(0.1 / 6 + 10 * 5 / 6) and "only 17% of it" in part.warnings[-1]


def test_a_small_gain_is_not_worth_a_cache_and_of_equally_fast_ones_the_smallest_is_kept() -> None:
    """Reading takes 985 and 970 ms of the 1,000 of the source, before an operator that takes nothing."""
    small = choose_execution(pipeline(0.0), StoreModel(per_element_s=0.985e-3))
    assert small.mode == "compute" and "less than 2% would be saved" in small.reason
    assert small.reason.startswith("compute: 1.0 s an epoch (reading 1.0 s for one reader, computing 0.0 s for one ")
    for latency, shown in ((1e-4, "1 ms"), (5e-5, "500 µs")):
        assert f"(reading {shown} for" in choose_execution(pipeline(1.0), StoreModel(latency_s=latency)).reason
    assert choose_execution(pipeline(0.0), StoreModel(per_element_s=0.970e-3)).mode == "source"
    ops = (OperatorCost("grow", 0.0, 3e5), OperatorCost("shrink", 0.0, 2e4))
    points = (CachePoint("large", "grow"), CachePoint("small", "shrink"))
    profile = ExecutionProfile(SourceCost(1.0, 1e5), ops, points, elements=10)
    assert choose_execution(profile, StoreModel(latency_s=1.0)).point == "small"


@given(work=st.floats(0, 1e6), share=st.floats(0, 1), threads=st.integers(1, 64))
def test_threads_share_what_one_may_do_at_a_time(work: float, share: float, threads: int) -> None:
    """Two that are at the till for 0.3 of each second meet there with a chance of 0.3, by hand."""
    assert shared_seconds(1, 0.3, 2) == pytest.approx((0.7 + 0.3 * 1.3) / 2) and shared_seconds(0, 0, 2) == 0
    found = shared_seconds(work, share * work, threads)
    assert found <= shared_seconds(work, share * work, max(1, threads - 1)) * (1 + 1e-9), "more are never slower"
    assert found >= max(share * work, work / threads) * (1 - 1e-9), "nor faster than their number"


SECONDS = st.floats(0, 10)


@examples(80)
@given(
    ops=st.lists(st.tuples(SECONDS, st.floats(0, 1e6), st.floats(0, 4)), max_size=5),
    source=st.tuples(SECONDS, st.floats(0, 1e6), st.floats(0, 1)),
    store=st.tuples(SECONDS, SECONDS, st.floats(0, 1e-5), st.floats(0, 1)),
    counts=st.tuples(*[st.integers(1, 9)] * 4),
)
def test_the_choice_is_nearly_the_best_and_never_worse_than_computing(
    ops: list[tuple[float, float, float]],
    source: tuple[float, float, float],
    store: tuple[float, float, float, float],
    counts: tuple[int, int, int, int],
) -> None:
    costs = tuple(OperatorCost(str(at), *one) for at, one in enumerate(ops))
    points = tuple(CachePoint(f"p{op.name}", op.name) for op in costs)
    profile = ExecutionProfile(SourceCost(*source), costs, points, 100, *counts)
    choice = choose_execution(profile, StoreModel(*store))
    assert choice.seconds <= choice.options[0].seconds
    assert choice.seconds <= min(option.seconds for option in choice.options) * 1.05
    assert choice.seconds in [option.seconds for option in choice.options if option.mode == choice.mode]
    work = [option.compute_seconds for option in choice.options]
    assert all(a >= b or math.isclose(a, b) for a, b in itertools.pairwise(work)), "later points leave less to compute"


# --- the model of a store --------------------------------------------------------------------------------------


def reads_of(model: StoreModel, count: int, seed: int, noise: float = 0.0) -> list[StoreRead]:
    """Reads that take what a model says, times a lognormal noise."""
    dice = np.random.default_rng(seed)
    elements = dice.integers(1, 2000, count)
    nbytes = elements * 10 ** dice.uniform(2, 6, count)
    factors = np.exp(dice.normal(0, noise, count))
    return [
        StoreRead(float(size), int(number), model.read_seconds(float(size), int(number)) * float(factor))
        for size, number, factor in zip(nbytes, elements, factors, strict=True)
    ]


@examples(15)
@given(
    st.floats(1e-4, 0.1),
    st.floats(1e-7, 1e-4),
    st.floats(1e7, 1e10),
    st.sampled_from([(1.0, 0.0, 1e-6), (10.0, 0.05, 0.25), (3.0, 0.05, 0.25), (0.1, 0.05, 0.25)]),
)
def test_measurements_give_the_model_back_whether_a_fifth_was_disturbed_or_none(
    latency: float, per_element: float, rate: float, disturbed: tuple[float, float, float]
) -> None:
    """By slow reads (the network paused) or by fast ones (the page cache had it)."""
    factor, noise, bound = disturbed
    truth = StoreModel(latency, per_element, 1 / rate)
    reads = reads_of(truth, 30, seed=3, noise=noise)
    found = StoreModel.fit(
        one._replace(seconds=one.seconds * factor) if at % 5 == 2 else one for at, one in enumerate(reads)
    )
    misses = [
        abs(found.read_seconds(one.nbytes, one.elements) / truth.read_seconds(one.nbytes, one.elements) - 1)
        for one in reads
    ]
    assert max(misses) < bound and found.measurements == 30
    assert min(found.latency_s, found.per_element_s, found.per_byte_s) >= 0
    assert found.error is not None and found.error < bound, "the error is that of the undisturbed"
