"""Cachew's autoscaler on the authors' trace and on nonsense, and that of Kubernetes by CPU utilization."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduction.authors_logs import load_trace
from pecan_ray.autoscaler import (
    CACHEW,
    CACHEW_CODE,
    Autoscaler,
    HorizontalPodAutoscaler,
    ScalingRule,
    Window,
)
from pecan_ray.errors import PlanError
from tests.long_form import examples


def window(batch_time: float, queue_size: float = 1.0, batches: int = 100) -> Window:
    return Window(batch_time, queue_size, batches)


@pytest.mark.parametrize(("rule", "stops_at"), [(CACHEW, 19), (CACHEW_CODE, 7)])
def test_the_authors_trace_leads_to_18_workers_at_3_percent_and_to_6_by_the_released_code(
    rule: ScalingRule, stops_at: int
) -> None:
    """In their log 19 was tried and given up for 18, at 47.7 ms after 48.8 ms: that run had not the code's 7 % bar."""
    scaler = Autoscaler(rule=rule, max_workers=100)
    windows = load_trace("resnet_cachew").windows[:stops_at]
    targets = [scaler.decide(window(batch_s), ran.remote).workers for ran, batch_s in windows]
    assert targets == [*range(2, stops_at + 1), stops_at - 1]


def test_the_released_code_measures_an_implausible_window_again() -> None:
    scaler = Autoscaler(rule=CACHEW_CODE)
    scaler.decide(window(0.4), 1)
    again = scaler.decide(window(0.9), 2)
    assert (again.workers, again.phase) == (2, "discarded")
    assert scaler.decide(window(0.2), 2).workers == 3


@pytest.mark.parametrize(("rule", "windows", "then"), [(CACHEW, 10, 7), (CACHEW_CODE, 20, 5)], ids=["paper", "code"])
def test_small_losses_of_removals_add_up_by_the_released_code_alone(rule: ScalingRule, windows: int, then: int) -> None:
    """2 % twice is more than 3 % of the reference."""
    scaler = Autoscaler(max_workers=16, rule=rule)
    for count in range(1, 9):
        scaler.decide(window(0.8 / count, queue_size=2.0), count)
    assert scaler.decide(window(0.1, queue_size=2.0), 9).workers == 8 and scaler.converged
    for _ in range(windows):
        decision = scaler.decide(window(0.1, queue_size=4.0), 8)
    assert decision.workers == 7
    assert scaler.decide(window(0.102), 7).workers == 6
    assert scaler.decide(window(0.104), 6).workers == then


@pytest.mark.parametrize(
    "bad",
    [
        window(math.nan),
        window(0.0),
        window(0.1, batches=1),
        Window(0.1, 1.0, 100, wait_time=-1.0),
        Window(0.1, 1.0, 100, wait_time=0.2),
        Window(0.1, 1.0, 100, cpu=math.nan),
        Window(0.1, 1.0, 100, touched=True),
    ],
    ids=repr,
)
def test_a_window_that_cannot_be_true_is_thrown_away(bad: Window) -> None:
    scaler = Autoscaler()
    scaler.decide(window(0.4), 1)
    decision = scaler.decide(bad, 2)
    assert (decision.workers, decision.phase) == (2, "discarded")
    assert decision.reason.startswith("keep 0 local + 2 remote: the window is thrown away, ")
    assert scaler.decide(window(0.2), 2).workers == 3, "the next good window counts as if it had not been"


def test_workers_that_never_come_are_given_up_and_later_asked_for_again() -> None:
    scaler, count, asked = Autoscaler(patience=3, max_workers=8), 1, list[int]()
    for _ in range(200):
        decision = scaler.decide(window(1 / count), count)
        asked.append(decision.workers)
        count = min(decision.workers, 2)
        if decision.phase == "settle_for_less":
            assert "after 4 windows 0 local + 2 remote run where 0 local + 3 remote were asked for" in decision.reason
    assert asked[:8] == [2, 3, 3, 3, 3, 2, 2, 2]
    assert 3 in asked[50:] and asked.count(3) < 20, "nodes may come later"


@pytest.mark.parametrize(("needed", "workers"), [(0.5, 1), (3.7, 4), (40.0, 33)])
def test_it_converges_at_what_is_needed_and_where_no_worker_gains_three_percent(needed: float, workers: int) -> None:
    """Worker n gains 1/n: beyond 33 none gains 3 %."""
    scaler, count = Autoscaler(), 1
    for _ in range(400):
        if scaler.converged:
            break
        batch_s = max(0.1, 0.1 * needed / count)
        count = scaler.decide(window(batch_s), count).workers
    assert scaler.converged and count == workers


def busy(cpu: float | None) -> Window:
    return Window(0.1, 1.0, 100, cpu=cpu)


@pytest.mark.parametrize(
    ("target", "cpu", "running", "wanted"),
    [
        (0.8, 1.0, 4, 5),
        (0.8, 0.8, 4, 4),  # Cachew Figure 6a: workers that wait for storage look idle, so it under-provisions
        (0.8, 0.88, 10, 10),  # within 10 % of the target nothing changes
        (0.8, 0.72, 10, 10),
        (0.8, 0.89, 10, 12),
        (0.1, 1.0, 1, 4),  # a rise is limited to four, or to the double
        (0.1, 1.0, 5, 10),
    ],
)
def test_workers_are_added_in_proportion_to_their_utilization(
    target: float, cpu: float, running: int, wanted: int
) -> None:
    assert HorizontalPodAutoscaler(target=target).decide(busy(cpu), running).workers == wanted


def test_workers_are_removed_only_when_the_whole_stabilization_window_agrees() -> None:
    scaler = HorizontalPodAutoscaler(target=0.8, stabilization_windows=3)
    assert [scaler.decide(busy(0.4), 10).workers for _ in range(3)] == [10, 10, 5]
    assert {scaler.decide(busy(0.8), 5).workers for _ in range(20)} == {5} and scaler.converged


@pytest.mark.parametrize("bad", [busy(None), busy(-1.0), Window(math.nan, 1.0, 100, cpu=0.9)])
def test_windows_without_a_utilization_are_thrown_away(bad: Window) -> None:
    scaler = HorizontalPodAutoscaler()
    before = scaler.decide(busy(0.8), 4).workers
    decision = scaler.decide(bad, 4)
    assert (decision.workers, decision.phase) == (before, "discarded")


@given(st.lists(st.tuples(st.floats(), st.integers(0, 1000)), max_size=40))
@examples(150)
def test_no_sequence_of_utilizations_drives_it_out_of_bounds(seen: list[tuple[float, int]]) -> None:
    scaler = HorizontalPodAutoscaler(min_workers=2, max_workers=9)
    for cpu, workers in seen:
        assert 2 <= scaler.decide(busy(cpu), workers).workers <= 9


@pytest.mark.parametrize(
    "make",
    [
        lambda: HorizontalPodAutoscaler(target=0.0),
        lambda: HorizontalPodAutoscaler(tolerance=1.0),
        lambda: HorizontalPodAutoscaler(stabilization_windows=0),
        lambda: HorizontalPodAutoscaler().decide(busy(0.5), -1),
        lambda: Autoscaler().decide(window(0.1), -1),
    ],
)
def test_nonsense_is_refused_when_it_is_given(make: Callable[[], object]) -> None:
    with pytest.raises(PlanError):
        make()
