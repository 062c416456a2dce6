"""Kubernetes' autoscaler by CPU utilization."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.autoscaler import HorizontalPodAutoscaler, Window
from pecan_ray.errors import PlanError
from tests.long_form import examples


def busy(cpu: float | None) -> Window:
    return Window(0.1, 1.0, 100, cpu=cpu)


@pytest.mark.parametrize(
    ("cpu", "running", "wanted"),
    [(1.0, 4, 5), (1.0, 8, 10), (0.88, 10, 10), (0.72, 10, 10), (0.89, 10, 12), (1.6, 10, 20), (1.0, 1, 2)],
)
def test_workers_are_added_in_proportion_to_their_utilization(cpu: float, running: int, wanted: int) -> None:
    """Target 80 %; within 10 % of it nothing changes."""
    assert HorizontalPodAutoscaler(target=0.8).decide(busy(cpu), running).workers == wanted


def test_a_rise_is_limited_to_the_double_or_to_four() -> None:
    assert HorizontalPodAutoscaler(target=0.1).decide(busy(1.0), 1).workers == 4
    assert HorizontalPodAutoscaler(target=0.1).decide(busy(1.0), 5).workers == 10


def test_workers_are_removed_only_when_the_whole_stabilization_window_agrees() -> None:
    scaler = HorizontalPodAutoscaler(target=0.8, stabilization_windows=3)
    targets = [scaler.decide(busy(0.4), 10).workers for _ in range(3)]
    assert targets == [10, 10, 5]
    assert scaler.decide(busy(0.8), 5).workers == 5


def test_it_does_not_see_that_the_trainer_waits() -> None:
    """Cachew Figure 6a: workers that wait for storage look idle, so it under-provisions."""
    scaler = HorizontalPodAutoscaler(target=0.8)
    starving = Window(batch_time=0.5, queue_size=0.0, batches=100, wait_time=0.4, cpu=0.8)
    assert {scaler.decide(starving, 4).workers for _ in range(20)} == {4}
    assert scaler.converged


@pytest.mark.parametrize("bad", [busy(None), busy(math.nan), busy(-1.0), Window(math.nan, 1.0, 100, cpu=0.9)])
def test_windows_without_a_utilization_are_thrown_away(bad: Window) -> None:
    scaler = HorizontalPodAutoscaler()
    before = scaler.decide(busy(0.8), 4).workers
    decision = scaler.decide(bad, 4)
    assert (decision.workers, decision.phase) == (before, "discarded")


@given(st.lists(st.tuples(st.floats(), st.integers(0, 1000)), max_size=40))
@examples(150)
def test_no_sequence_of_windows_drives_it_out_of_bounds(seen: list[tuple[float, int]]) -> None:
    scaler = HorizontalPodAutoscaler(min_workers=2, max_workers=9)
    for cpu, workers in seen:
        assert 2 <= scaler.decide(busy(cpu), workers).workers <= 9


@pytest.mark.parametrize(
    "make",
    [
        lambda: HorizontalPodAutoscaler(target=0.0),
        lambda: HorizontalPodAutoscaler(target=math.nan),
        lambda: HorizontalPodAutoscaler(tolerance=1.0),
        lambda: HorizontalPodAutoscaler(min_workers=0),
        lambda: HorizontalPodAutoscaler(max_workers=1, min_workers=2),
        lambda: HorizontalPodAutoscaler(stabilization_windows=0),
        lambda: HorizontalPodAutoscaler().decide(busy(0.5), -1),
    ],
)
def test_nonsense_is_refused_when_it_is_given(make: Callable[[], object]) -> None:
    with pytest.raises(PlanError):
        make()
