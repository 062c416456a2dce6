"""The read-time model of a store: coefficients found again, in spite of noise and of disturbed reads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import StoreModel, StoreRead
from pecan_ray.errors import PlanError
from tests.long_form import examples


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
@given(latency=st.floats(1e-4, 0.1), per_element=st.floats(1e-7, 1e-4), rate=st.floats(1e7, 1e10))
def test_exact_measurements_give_the_model_back(latency: float, per_element: float, rate: float) -> None:
    truth = StoreModel(latency, per_element, 1 / rate)
    reads = reads_of(truth, 8, seed=3)
    found = StoreModel.fit(reads)
    assert worst_miss(found, truth, reads) < 1e-6
    assert found.error is not None and found.error < 1e-6 and found.measurements == 8


@pytest.mark.parametrize("factor", [10.0, 3.0, 0.1])
def test_a_fifth_of_disturbed_reads_changes_little(factor: float) -> None:
    """Slow ones (the network paused) and fast ones (the page cache had it)."""
    seed = round(factor)
    truth = StoreModel(2e-3, 5e-6, 2e-9)
    reads = reads_of(truth, 30, seed, noise=0.05)
    disturbed = [one._replace(seconds=one.seconds * factor) if at % 5 == 2 else one for at, one in enumerate(reads)]
    found = StoreModel.fit(disturbed)
    assert worst_miss(found, truth, reads) < 0.12
    assert found.error is not None and 0.02 < found.error < 0.12, "the error is that of the undisturbed"


@examples(20)
@given(st.lists(st.tuples(st.floats(1, 1e12), st.integers(1, 10**6), st.floats(1e-7, 1e4)), min_size=1, max_size=8))
def test_whatever_was_measured_no_coefficient_is_negative(reads: list[tuple[float, int, float]]) -> None:
    found = StoreModel.fit(reads)
    assert min(found.latency_s, found.per_element_s, found.per_byte_s) >= 0
    assert all(0 < found.read_seconds(nbytes, elements) < math.inf for nbytes, elements, _ in reads)


def test_what_measurements_do_not_tell_apart_is_a_time_per_byte_then_latency() -> None:
    one = StoreModel.fit([(1e6, 100, 0.01)])
    assert (one.latency_s, one.per_element_s, one.error) == (0, 0, None)
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
