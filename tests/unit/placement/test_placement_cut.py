"""Where a pipeline is cut: by sizes of rows, CPU time, link and prices."""

from __future__ import annotations

import math

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.placement import Cost, Prices
from pecan_ray.placement.cut import LinkCosts, TailOp, choose_cut

FLOATS = (TailOp("to_float", 150_528, 602_112, 0.0002), TailOp("normalize", 602_112, 602_112, 0.0001))
"""A photograph of 224 x 224 pixels: bytes, then floats."""
SLOW, FAST = 125e6, 12.5e9
"""Bytes a second of 1 and of 100 Gbit/s."""


def test_a_slow_link_carries_bytes_and_the_trainer_makes_floats_of_them() -> None:
    cut = choose_cut(FLOATS, LinkCosts(SLOW))
    assert cut.first == 0
    assert (
        "to_float, normalize run where batches arrive: a row has 150,528 bytes there and 602,112 at the end" in cut.why
    )
    assert "0.00482 s of link and host, 0.0012 s with the cut, at 125 MB/s" in cut.why


def test_on_a_fast_link_the_host_would_be_slower_than_the_link() -> None:
    assert choose_cut(FLOATS, LinkCosts(FAST)).first == 2


def test_a_gain_of_less_than_a_tenth_is_none() -> None:
    """The link takes 0.602 ms for floats, and the host 0.55 ms to make them: 0.542 ms would be a tenth less."""
    for seconds, first in ((0.00055, 1), (0.00053, 0)):
        cut = choose_cut([TailOp("to_float", 150_528, 602_112, seconds)], LinkCosts(1e9))
        assert cut.first == first
    assert (
        "to_float stay on the worker: the cut saves 9%"
        in choose_cut([TailOp("to_float", 150_528, 602_112, 0.00055)], LinkCosts(1e9)).why
    )


def test_the_cut_lies_where_a_row_is_smallest() -> None:
    ops = (TailOp("shrink", 4000, 1000, 1e-6), TailOp("to_float", 1000, 4000, 1e-6))
    assert choose_cut(ops, LinkCosts(SLOW)).first == 1
    assert choose_cut(ops[:1], LinkCosts(SLOW)).first == 1
    assert choose_cut(ops[:1], LinkCosts(SLOW), always=True).first == 1


def test_where_gigabytes_cost_money_bytes_travel_also_over_a_fast_link() -> None:
    """At $ 0.02 a gigabyte the floats of a row cost $ 1.2e-5 to send, and a host of $ 5 makes them for $ 4.2e-7."""
    prices = LinkCosts(FAST, transfer_per_gb=0.02, worker_per_hour=0.4, host_per_hour=5.0)
    assert choose_cut(FLOATS, prices).first == 0
    assert choose_cut(FLOATS, LinkCosts(FAST, 0.0, 0.4, 5.0)).first == 2


def test_always_looks_at_bytes_alone() -> None:
    dear = [TailOp("to_float", 150_528, 602_112, 10.0)]
    assert (choose_cut(dear, LinkCosts(FAST)).first, choose_cut(dear, LinkCosts(FAST), always=True).first) == (1, 0)


@pytest.mark.parametrize("price", [-1, math.nan, math.inf, True, "1"])
def test_a_price_of_transfer_that_is_none_is_refused(price: object) -> None:
    with pytest.raises(PlanError, match=r"transfer_per_gb must be a price in \$ per gigabyte"):
        Prices(1.0, 1.0, transfer_per_gb=price)  # type: ignore[arg-type]  # what a user may pass


def test_transfer_is_a_part_of_the_bill_and_reports_of_before_have_none() -> None:
    assert Cost(1.0, 2.0, 0.6, 3.0).total == 6.0
    assert Prices.of_fields({"accelerator_host": 1.0, "remote_worker": 2.0}).transfer_per_gb == 0.0
    assert Prices.of_fields({"accelerator_host": 1.0, "remote_worker": 2.0, "transfer_per_gb": 0.09}) == Prices(
        1.0, 2.0, transfer_per_gb=0.09
    )
