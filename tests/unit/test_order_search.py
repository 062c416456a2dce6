"""The search on a sampled stretch where time is over, and exchanges that measuring shows not to be missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from pecan_ray.autoorder.facts import OpSample, StretchSample
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.search import OrderSearch
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.autoorder.trial import Trial, make_trial
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder
from pecan_ray.plan.operators import Map
from pecan_ray.reorder import NEUTRAL_BAND, auto_order, in_order
from tests.unit.sampled_orders import blur, half, images, order, refusals

COUNT = 64


def test_mode_paper_adopts_nothing_that_was_not_run_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(sampled: Sampled, request: OrderRequest) -> Trial:
        sampled.limits = replace(sampled.limits, deadline=0.0)
        return make_trial(sampled, request)

    pipe = images().map(blur, on="image").map(half, on="image")
    assert order(pipe, "paper").adopted.order == ("half", "blur")
    monkeypatch.setattr("pecan_ray.autoorder.order.make_trial", late)
    found = order(pipe, "paper")
    assert found.sample.complete and found.proposed.order == ("half", "blur"), "it was sampled"
    assert found.adopted.order == ("blur", "half") and NO_TIME in refusals(found) and found.hurried


class Measured:
    """A trial in which the order without an exchange is as fast as it is said to be."""

    def __init__(self, speedup: float, refused: str = "") -> None:
        self._speedup, self._refused = speedup, refused
        self.compared: list[tuple[OpOrder, OpOrder | None]] = []

    def compare(
        self, order: OpOrder, other: OpOrder | None = None, patience_s: float = 0.0
    ) -> tuple[SpeedComparison, str]:
        self.compared.append((order, other))
        return SpeedComparison(self._speedup if other else 3.0, 0.001, 1.0, 1.0 / self._speedup, COUNT), ""

    def look(self, order: OpOrder) -> str:
        return self._refused

    def verify_rest(self, order: OpOrder) -> tuple[str, int]:
        return "", COUNT


def measured(name: str, seconds: float, size: int, out: int) -> OpSample:
    points = tuple((share * size, share * seconds) for share in (0.25, 0.5, 1.0))
    columns = frozenset({"image"})
    return OpSample(
        Map(name=name, fn=blur, on="image"),
        elements_in=COUNT,
        elements_out=COUNT,
        bytes_in=COUNT * size,
        bytes_out=COUNT * out,
        bytes_read=COUNT * size,
        points=points,
        seconds=seconds,
        reads=columns,
        writes=columns,
    )


SAMPLE = StretchSample(
    (measured("flip", 0.002, 1000, 1000), measured("blur", 1.0, 1000, 1000), measured("shrink", 0.01, 1000, 250)), COUNT
)


def without_idle(trial: Measured) -> tuple[OpOrder, float, Sequence[str]]:
    """What is left of the order in which `shrink` comes first."""
    search = OrderSearch(SAMPLE, cast(Any, trial), "cost", lambda: SAMPLE, lambda _: iter(()))
    plan = in_order(auto_order(SAMPLE.profiled, "cost", neutral_band=NEUTRAL_BAND), ("shrink", "flip", "blur"))
    found, comparison = search._without_idle_exchanges(plan, SpeedComparison(3.1, 0.01, 1.0, 0.3, COUNT))
    return found.order, comparison.speedup, list(search._refused.values())


def test_an_exchange_that_is_measured_to_bring_nothing_is_undone() -> None:
    trial = Measured(1.0)
    order, speedup, _ = without_idle(trial)
    assert order == ("flip", "shrink", "blur")
    assert trial.compared == [
        (("shrink", "flip", "blur"), ("flip", "shrink", "blur")),
        (("flip", "shrink", "blur"), None),
    ], "of the exchange with `blur` the estimate is sure"
    assert speedup == 3.0, "what is told is that of the order that is left"


def test_an_exchange_that_is_measured_to_be_missed_stays() -> None:
    order, speedup, refused = without_idle(Measured(1.04))
    assert order == ("shrink", "flip", "blur") and speedup == 3.1
    assert refused == ["the exchange that it lacks is worth its place"]


def test_an_exchange_without_which_values_are_others_stays() -> None:
    order, speedup, refused = without_idle(Measured(1.0, "its values are others"))
    assert order == ("shrink", "flip", "blur") and speedup == 3.1 and refused == ["its values are others"]


def test_an_order_takes_the_place_of_one_that_was_adopted_only_if_it_is_certainly_faster() -> None:
    adopted = SpeedComparison(2.23, 0.11, 1.0, 1.0 / 2.23, COUNT)
    assert not replace(adopted, speedup=2.29).faster_than(adopted), "both were measured, and neither exactly"
    assert not SpeedComparison(2.26, 0.0, 1.0, 1.0, COUNT).faster_than(replace(adopted, error=0.0)), "hardly"
    assert replace(adopted, speedup=2.7).faster_than(adopted)
    assert not adopted.faster_than(replace(adopted, speedup=2.7))


class Idle(Measured):
    """A trial in which an operator was seen to do nothing any more, and only some orders pass a look."""

    failed = ""

    def __init__(self, idle: str, *passing: OpOrder) -> None:
        super().__init__(1.0)
        self.idle, self._passing = idle, passing
        self.looked_at: list[OpOrder] = []

    def look(self, order: OpOrder) -> str:
        self.looked_at.append(order)
        return "" if order in self._passing else "its values are others"


def suspect(trial: Idle, proposed: OpOrder) -> tuple[str, str] | None:
    search = OrderSearch(SAMPLE, cast(Any, trial), "cost", lambda: SAMPLE, lambda _: iter(()))
    plan = in_order(auto_order(SAMPLE.profiled, "cost", neutral_band=NEUTRAL_BAND), proposed)
    return search._suspect(plan)


@pytest.mark.parametrize(("idle", "pair"), [("blur", ("blur", "shrink")), ("flip", ("flip", "shrink"))])
def test_the_exchange_that_left_an_operator_nothing_to_do_is_known_without_a_look(
    idle: str, pair: tuple[str, str]
) -> None:
    trial = Idle(idle)
    assert suspect(trial, ("shrink", "flip", "blur")) == pair and not trial.looked_at


@pytest.mark.parametrize(
    ("passing", "pair"),
    [
        ([("shrink", "flip", "blur")], ("flip", "blur")),
        ([("flip", "shrink", "blur")], ("flip", "shrink")),
        ([], ("flip", "shrink")),
    ],
    ids=["not the nearest one", "the nearest one", "none that shows it"],
)
def test_of_several_exchanges_the_one_is_left_out_without_which_an_order_passes(
    passing: list[OpOrder], pair: tuple[str, str]
) -> None:
    trial = Idle("flip", *passing)
    assert suspect(trial, ("blur", "shrink", "flip")) == pair
    assert 1 <= len(trial.looked_at) <= 2, "nothing but exchanges of that operator"


@pytest.mark.parametrize(("directly", "taken"), [(1.2, True), (1.0, False)])
def test_orders_that_seem_apart_and_were_not_measured_exactly_are_compared_directly(
    directly: float, taken: bool
) -> None:
    trial = Measured(directly)
    search = OrderSearch(SAMPLE, cast(Any, trial), "cost", lambda: SAMPLE, lambda _: iter(()))
    adopted, new = ("flip", "shrink", "blur"), ("shrink", "flip", "blur")
    rough = SpeedComparison(2.0, 0.4, 1.0, 0.5, COUNT)
    assert search._better(new, replace(rough, speedup=2.5), adopted, rough) is taken
    assert trial.compared == [(new, adopted)]
    assert not search._better(new, replace(rough, speedup=2.01), adopted, rough)
    assert search._better(new, replace(rough, speedup=9.0), adopted, rough)
    assert len(trial.compared) == 1, "nobody needs to measure these again"
