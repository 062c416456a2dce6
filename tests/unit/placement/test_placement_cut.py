"""Where a pipeline is cut: by sizes of rows, CPU time, link and prices; `test_placement_decided` shows more of it."""

from __future__ import annotations

import pytest

from pecan_ray.placement.cut import LinkCosts, TailOp, choose_cut

FLOATS = (TailOp("to_float", 150_528, 602_112, 0.0002), TailOp("normalize", 602_112, 602_112, 0.0001))
"""A photograph of 224 x 224 pixels: bytes, then floats."""
SLOW, FAST = 125e6, 12.5e9
"""Bytes a second of 1 and of 100 Gbit/s."""


def of_seconds(seconds: float) -> tuple[TailOp]:
    return (TailOp("to_float", 150_528, 602_112, seconds),)


@pytest.mark.parametrize(
    ("ops", "link", "always", "first"),
    [
        (FLOATS, LinkCosts(SLOW), False, 0),
        (FLOATS, LinkCosts(FAST), False, 2),  # the host would be slower than the link
        # The link takes 0.602 ms for floats, and the host so long to make them: 0.542 ms would be a tenth less.
        (of_seconds(0.00055), LinkCosts(1e9), False, 1),
        (of_seconds(0.00053), LinkCosts(1e9), False, 0),
        ((TailOp("shrink", 4000, 1000, 1e-6),), LinkCosts(SLOW), True, 1),
        # At $ 0.02 a gigabyte the floats of a row cost $ 1.2e-5 to send, and a host of $ 5 makes them for $ 4.2e-7.
        (FLOATS, LinkCosts(FAST, transfer_per_gb=0.02, worker_per_hour=0.4, host_per_hour=5.0), False, 0),
        (FLOATS, LinkCosts(FAST, 0.0, 0.4, 5.0), False, 2),
        (of_seconds(10.0), LinkCosts(FAST), True, 0),  # always: by bytes alone
    ],
)
def test_a_pipeline_is_cut_where_link_and_host_together_cost_least(
    ops: tuple[TailOp, ...], link: LinkCosts, always: bool, first: int
) -> None:
    assert choose_cut(ops, link, always=always).first == first
