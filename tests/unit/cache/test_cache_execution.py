"""What is kept: Cachew's formula and Figure 8, several points, limits of storage, reasons; the model of a store."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduction.cachew_caching import BATCH, IMAGES, experiment
from benchmarks.reproduction.reported_caches import CACHEW_8
from pecan_ray.cache import (
    CachePoint,
    DeliveryCost,
    ExecutionProfile,
    OperatorCost,
    SourceCost,
    StoreModel,
    StoreRead,
    choose_execution,
)
from pecan_ray.cache.execution import ExecutionPlace, shared_seconds
from pecan_ray.cache.execution_profile import LOCKED_BYTES
from pecan_ray.errors import PlanError
from tests.long_form import examples


@pytest.mark.parametrize("sleep_ms", CACHEW_8)
def test_figure_8_of_cachew(sleep_ms: int) -> None:
    """Every mode's batch time within 4 % of the figure, and the choice within 2 % of the best one."""
    choice = choose_execution(*experiment(sleep_ms))
    told = {option.mode: option.seconds / IMAGES * BATCH * 1e3 for option in choice.options}
    measured = dict(zip(("compute", "source", "full"), CACHEW_8[sleep_ms], strict=True))
    assert told == pytest.approx(measured, rel=0.04)
    assert measured[choice.mode] <= 1.02 * min(measured.values())
    assert (choice.mode == "full") == (sleep_ms >= 450) and (choice.mode == "source") == (sleep_ms < 300)


def pipeline(*seconds: float, waiting: float = 0.0) -> ExecutionProfile:
    """Operators a, b, ... of 100 KB each with a point behind every one, 1,000 elements; reading takes 1 ms."""
    names = "abcdef"[: len(seconds)]
    ops = tuple(OperatorCost(name, one, 1e5) for name, one in zip(names, seconds, strict=True))
    points = tuple(CachePoint(f"behind_{name}", behind=name) for name in names)
    return ExecutionProfile(SourceCost(1e-3, 1e5, waiting), ops, points, elements=1000, splits=10)


def decoding(seconds: float = 0.009, refresh: float = 0.0, **others: Any) -> ExecutionProfile:
    """A thousand images of 1 MB, kept behind their decoding, of which a share may be renewed; reading takes 1 ms."""
    ops, points = (OperatorCost("decode", seconds, 1e6),), (CachePoint("here", "decode", refresh),)
    return ExecutionProfile(SourceCost(0.001, 1e5), ops, points, elements=1000, **others)


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


def test_filters_and_flat_maps_change_how_many_elements_are_read() -> None:
    profile = ExecutionProfile(
        SourceCost(1e-3, 100),
        (OperatorCost("keep", 1e-3, 100, elements=0.1), OperatorCost("crops", 1e-2, 50, elements=4.0)),
        (CachePoint("kept", behind="keep"), CachePoint("cropped", behind="crops")),
        elements=1000,
    )
    compute, source, kept, cropped = choose_execution(profile, StoreModel(per_element_s=1e-5)).options
    assert compute.seconds == pytest.approx(1 + 1 + 100 * 1e-2)
    assert [round(option.nbytes) for option in (source, kept, cropped)] == [100_000, 10_000, 20_000]
    assert [option.read_seconds for option in (source, kept, cropped)] == pytest.approx([1e-2, 1e-3, 4e-3])
    assert [option.compute_seconds for option in (source, kept, cropped)] == pytest.approx([2, 1, 0])


def test_reading_that_waits_goes_on_beside_computing_up_to_what_the_storage_gives_all() -> None:
    profile = pipeline(4e-3, waiting=1.0)
    assert choose_execution(profile, StoreModel()).options[0].seconds == pytest.approx(4.0)
    assert choose_execution(pipeline(4e-3), StoreModel()).options[0].seconds == pytest.approx(5.0)
    many = replace(profile, workers=2, threads=8)
    assert choose_execution(many, StoreModel()).options[0].seconds == pytest.approx(0.5), "one reader in each worker"
    assert choose_execution(replace(many, readers=4), StoreModel()).options[0].seconds == pytest.approx(0.25)
    store = StoreModel(per_byte_s=1e-9, most_bytes_per_s=1e8)
    one, many = pipeline(20e-3), replace(pipeline(20e-3), workers=64)
    assert choose_execution(one, store).mode == "full"
    choice = choose_execution(many, store)
    assert choice.mode == "compute" and choice.options[-1].seconds == pytest.approx(1.0)
    slow_source = replace(many, source=replace(many.source, most_bytes_per_s=1e6))
    assert choose_execution(slow_source, store).mode != "compute"


def test_splits_that_are_too_large_for_an_entry_are_computed() -> None:
    """Splits of 100 elements with 100 KB each; of a hundred and a single one the hundred are most of the bytes."""
    profile, store = replace(pipeline(9e-3), split_elements=(100.0,) * 10), StoreModel(per_byte_s=1e-9)
    most = 1e7  # bytes
    assert choose_execution(profile, store, most_entry_bytes=most) == choose_execution(profile, store)
    for remote in (None, store):
        none = choose_execution(profile, store, most_entry_bytes=most - 1, remote=remote)
        assert none.mode == "compute" and [option.share for option in none.options[1:]] == [0.0, 0.0]
        assert {option.seconds for option in none.options} == {10.0} and not none.remote
        assert "nothing of it can be kept" in none.warnings[-1] and "'behind_a'" in none.warnings[-1]
    took: dict[ExecutionPlace, float] = {("full", "behind_a"): 0.1}
    assert choose_execution(profile, store, most_entry_bytes=most - 1, measured=took).mode == "compute"
    uneven = replace(profile, split_elements=(100.0, 20.0))
    part = choose_execution(uneven, store, most_entry_bytes=most - 1)
    assert part.mode == "full" and part.options[-1].share == pytest.approx(1 / 6)
    assert part.seconds == pytest.approx(0.1 / 6 + 10 * 5 / 6) and "only 17% of it" in part.warnings[-1]
    far = choose_execution(uneven, store, most_entry_bytes=most - 1, max_bytes=10_000_000, remote=store)
    assert far.seconds == pytest.approx(0.1 / 6 + 10 * 5 / 6), "what has no room is read from there, what cannot be not"
    unknown = replace(profile, split_elements=())
    assert choose_execution(unknown, store, most_entry_bytes=1.0).mode == "full", "nothing is known of splits"


def test_a_small_gain_is_not_worth_a_cache_and_of_equally_fast_ones_the_smallest_is_kept() -> None:
    """Reading takes 985 and 970 ms of the 1,000 of the source, before an operator that takes nothing."""
    small = choose_execution(pipeline(0.0), StoreModel(per_element_s=0.985e-3))
    assert small.mode == "compute" and "less than 2% would be saved" in small.reason
    assert choose_execution(pipeline(0.0), StoreModel(per_element_s=0.970e-3)).mode == "source"
    ops = (OperatorCost("grow", 0.0, 3e5), OperatorCost("shrink", 0.0, 2e4))
    points = (CachePoint("large", "grow"), CachePoint("small", "shrink"))
    profile = ExecutionProfile(SourceCost(1.0, 1e5), ops, points, elements=10)
    assert choose_execution(profile, StoreModel(latency_s=1.0)).point == "small"


def test_making_batches_takes_its_time_and_less_in_rows() -> None:
    # It is done by the threads that compute: an epoch from the cache is never promised shorter than that.
    store, delivery = StoreModel(per_byte_s=1e-10), DeliveryCost(per_element_s=1e-4, per_byte_s=1e-9)
    free = choose_execution(decoding(threads=2), store)
    bound = choose_execution(decoding(threads=2, delivery=delivery), store)
    assert free.seconds == pytest.approx(0.1) and free.mode == bound.mode == "full"
    small = LOCKED_BYTES * 1e-9
    made, locked = 1000 * (1e-4 + 1e-3), 1000 * (1e-4 + small + (1e-3 - small) / 2)
    assert bound.options[-1].compute_seconds == pytest.approx(made)
    assert bound.seconds == pytest.approx(shared_seconds(0.1 + made, locked, 2)) and bound.seconds > locked
    computed = shared_seconds(10 + made, locked + 1000 * 1e-4, 2)
    assert bound.options[0].seconds == pytest.approx(computed), "and what Python takes around each call"
    one = choose_execution(decoding(delivery=delivery), store)
    assert one.seconds == pytest.approx(0.1 + made), "one thread waits for nobody"
    costs = DeliveryCost(per_element_s=1e-3, per_byte_s=1e-9)
    ops = (OperatorCost("decode", 0.009, 1e5),)
    profile = ExecutionProfile(SourceCost(0.001, 1e5), ops, (CachePoint("end", "decode"),), 1000, delivery=costs)
    store = StoreModel(per_byte_s=1e-9)
    assert choose_execution(profile, store).seconds == pytest.approx(1000 * (1e-4 + 1e-3 + 1e-4))
    in_rows = choose_execution(replace(profile, rows=True), store)
    assert in_rows.seconds == pytest.approx(1000 * (1e-4 + 1e-4))
    assert in_rows.options[0].seconds == choose_execution(profile, store).options[0].seconds, "computed ones are"


def test_batches_that_are_handed_over_and_the_pause_between_epochs_are_promised_too() -> None:
    """On 2 CPUs that are shared with the trainer; four workers hand theirs over side by side."""
    profile, store = replace(pipeline(4e-3), batches=100, threads=2), StoreModel()
    plain = choose_execution(profile, store).options[0].seconds
    handing = replace(profile, delivery=DeliveryCost(per_batch_s=2e-3, per_epoch_s=0.05))
    for workers in (1, 4):
        told = choose_execution(replace(handing, workers=workers), store).options[0].seconds
        assert told == pytest.approx((plain + 100 * 2e-3 / 2) / workers + 0.05)


@given(work=st.floats(0, 1e6), share=st.floats(0, 1), threads=st.integers(1, 64))
def test_threads_share_what_one_may_do_at_a_time(work: float, share: float, threads: int) -> None:
    """Two that are at the till for 0.3 of each second meet there with a chance of 0.3, by hand."""
    assert shared_seconds(1, 0.3, 2) == pytest.approx((0.7 + 0.3 * 1.3) / 2)
    found = shared_seconds(work, share * work, threads)
    assert found <= shared_seconds(work, share * work, max(1, threads - 1)) * (1 + 1e-9), "more are never slower"
    assert found >= max(share * work, work / threads) * (1 - 1e-9), "nor faster than their number"


def test_what_is_renewed_is_computed_and_what_an_epoch_took_counts_for_more_than_the_model() -> None:
    ops = (OperatorCost("crop", 0.009, 1e6, random=True),)
    profile = replace(decoding(), ops=ops, points=(CachePoint("here", "crop", 0.25),))
    choice = choose_execution(profile, StoreModel(per_byte_s=1e-10))
    assert choice.seconds == pytest.approx(0.75 * 0.1 + 0.25 * 10) and choice.warnings == ()
    profile, store = decoding(), StoreModel(per_byte_s=1e-10)
    assert choose_execution(profile, store).mode == "full"
    slow = choose_execution(profile, store, measured={("full", "here"): 12.0})
    assert slow.mode == "source" and slow.seconds == pytest.approx(9.01), "promised 0.1 s, it took 12"
    corrected = choose_execution(profile, store, measured={("full", "here"): 0.3, ("source", "here"): 0.2})
    assert (corrected.mode, corrected.seconds) == ("full", 0.3), "there is no point before the operator by that name"
    assert "300 ms an epoch (as measured; reading" in corrected.reason


def test_points_behind_random_operators_are_warned_of() -> None:
    ops = tuple(OperatorCost(name, 1, 1, random=name != "decode") for name in ("decode", "flip", "jitter"))
    points = (CachePoint("early", "decode"), CachePoint("mid", "flip"), CachePoint("late", "jitter"))
    choice = choose_execution(ExecutionProfile(SourceCost(1, 1), ops, points, elements=1), StoreModel(per_byte_s=100))
    assert choice.mode == "compute", "the next store may be faster: it is said in any case"
    of_mid, of_late = choice.warnings
    assert "'mid' stands behind the random operator 'flip'" in of_mid
    assert "'late' stands behind the random operators 'flip', 'jitter'" in of_late


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


def test_what_has_no_room_here_is_read_from_the_remote_store_where_that_is_sooner() -> None:
    profile, most = decoding(0.01), 250_000_000
    disk, remote = StoreModel(per_byte_s=1e-9), StoreModel(per_byte_s=5e-9)
    alone = choose_execution(profile, disk, max_bytes=most)
    assert alone.seconds == pytest.approx(0.25 * 1 + 0.75 * 11) and not alone.remote
    both = choose_execution(profile, disk, max_bytes=most, remote=remote)
    assert both.seconds == pytest.approx(0.25 * 1 + 0.75 * 5) and both.remote
    assert "25% of 1,000.0 MB kept here, and all of it in the remote store" in both.reason
    roomy = choose_execution(profile, disk, remote=remote)
    assert roomy.seconds == pytest.approx(1) and roomy.remote, "other nodes read it there"
    slow = choose_execution(profile, disk, max_bytes=most, remote=StoreModel(per_byte_s=2e-8))
    assert not slow.remote and slow.seconds == alone.seconds and "remote" not in slow.reason
    hardly = choose_execution(profile, disk, max_bytes=most, remote=StoreModel(per_byte_s=1.09e-8))
    assert not hardly.remote, "it would save 1 %"
    waits = StoreModel(per_byte_s=2e-8, waiting=1.0)
    assert choose_execution(replace(profile, readers=4), disk, remote=waits).remote, "four wait side by side"
    memory = choose_execution(profile, disk, memory=(StoreModel(per_byte_s=2e-10), most))
    assert memory.seconds == pytest.approx(0.75 * 1 + 0.25 * 0.2), "what fits is read from memory"
    assert choose_execution(profile, disk, memory=(StoreModel(), 2 * 10**9)).options[-1].read_seconds == 0, "all fits"
    renewed = choose_execution(decoding(0.01, refresh=0.2), disk, max_bytes=500_000_000, remote=remote)
    assert renewed.seconds == pytest.approx(0.8 * (0.5 * 1 + 0.5 * 5) + 0.2 * 11), "wherever the rest lies"


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


def worst_miss(found: StoreModel, truth: StoreModel, reads: list[StoreRead]) -> float:
    """The largest relative difference between two models, over these reads."""
    return max(
        abs(found.read_seconds(one.nbytes, one.elements) / truth.read_seconds(one.nbytes, one.elements) - 1)
        for one in reads
    )


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
    assert worst_miss(found, truth, reads) < bound and found.measurements == 30
    assert found.error is not None and found.error < bound, "the error is that of the undisturbed"


@examples(20)
@given(st.lists(st.tuples(st.floats(1, 1e12), st.integers(1, 10**6), st.floats(1e-7, 1e4)), min_size=1, max_size=8))
def test_whatever_was_measured_no_coefficient_is_negative(reads: list[tuple[float, int, float]]) -> None:
    found = StoreModel.fit(reads)
    assert min(found.latency_s, found.per_element_s, found.per_byte_s) >= 0
    assert all(0 < found.read_seconds(nbytes, elements) < math.inf for nbytes, elements, _ in reads)


def test_what_measurements_do_not_tell_apart_is_a_time_per_byte_then_latency() -> None:
    one = StoreModel.fit([(1e6, 100, 0.01)])
    assert (one.latency_s, one.per_element_s, one.waiting, one.error) == (0, 0, 0, None)
    assert one.read_seconds(5e6, 1) == pytest.approx(0.05)
    two = StoreModel.fit([(1e6, 10, 0.011), (100e6, 1000, 0.11)])
    assert two.read_seconds(50.5e6, 505) == pytest.approx(0.0605)
    assert two.read_seconds(0, 0) == pytest.approx(0.01)
    assert two.read_seconds(2e6, 20, reads=2) == pytest.approx(0.022), "latency counts for each read"
    assert two.error is None, "two points lie on every line"
    of_one_size = StoreModel.fit([(100.0 * n, n, 1e-3 + 1e-5 * n) for n in (1, 10, 100, 1000)])
    assert of_one_size.per_element_s == 0 and of_one_size.read_seconds(5e4, 500) == pytest.approx(6e-3)


def measuring(*read: float) -> StoreModel:
    return StoreModel.fit([(1.0, 1.0, 1.0), read])  # type: ignore[list-item] # what a caller may get wrong


@pytest.mark.parametrize(
    ("makes", "says"),
    [
        (lambda: OperatorCost("", 1, 1), "OperatorCost(name=...) must be a non-empty string"),
        (lambda: OperatorCost("a", math.nan, 1), "operator 'a': seconds must be a finite number >= 0, but got nan"),
        (lambda: SourceCost(1, 1, waiting=2), "SourceCost(waiting=...) must be a share from 0 to 1, but got 2"),
        (lambda: SourceCost(1, 1, most_bytes_per_s=0), "most_bytes_per_s=...) must be a number > 0, but got 0"),
        (lambda: replace(pipeline(1), elements=0), "elements=...) must be a finite number > 0, but got 0"),
        (lambda: replace(pipeline(1), points=(CachePoint("p", "x"),)), "stands behind 'x', which is no operator here"),
        (lambda: replace(pipeline(1), points=(CachePoint("p"),) * 2), "two autocache points are named 'p'"),
        (lambda: choose_execution(pipeline(1), StoreModel(), max_bytes=0), "max_bytes=...) must be a whole number"),
        (lambda: choose_execution(pipeline(1), StoreModel(), measured={("full", "behind_a"): math.nan}), "measured"),
        (lambda: CachePoint("here", "crop", 1.5), "refresh must be a share"),
        (lambda: measuring(0, 1, 1.0), "measurement 1 of the store: nbytes must be a finite number > 0, but got 0"),
        (lambda: measuring(1, True, 1.0), "elements must be a finite number > 0, but got True"),
        (lambda: measuring(1, 1, -1.0), "seconds must be a finite number > 0, but got -1.0"),
        (lambda: measuring(1, 1), "must be (bytes, elements, seconds), but got (1, 1)"),
        (lambda: StoreModel.fit([]), "needs at least one"),
        (lambda: StoreModel.fit([(1, 1, 1)], waiting=1.5), "waiting=...) must be a share from 0 to 1, but got 1.5"),
        (lambda: StoreModel(per_byte_s=-1), "per_byte_s=...) must be a finite number >= 0, but got -1"),
    ],
)
def test_nonsense_is_refused_by_name(makes: Callable[[], object], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        makes()
