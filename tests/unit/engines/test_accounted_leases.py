"""What an engine says nothing of: it ends with the assignment, or is an error, and is waited for in no case."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pecan_ray.engines.accounted_leases import AccountedLeases
from pecan_ray.errors import PecanError
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.spans import Span
from tests.unit.engines.engine_leases import ListedLeases

KEY = (0, 0, 0)


def elements(first: int, stop: int) -> Span:
    return first << OUTPUT_BITS, stop << OUTPUT_BITS


def given(*spans: Span, length: int | None = None, mentioned: Sequence[Span] = ()) -> AccountedLeases:
    """An engine that has mentioned some positions of one lease."""
    accounted = AccountedLeases(ListedLeases([Lease(0, Split(0, elements=length), spans=spans)]))
    assert accounted.take() is not None and accounted.take() is None
    accounted.mention({KEY: list(mentioned)})
    return accounted


def test_what_lies_behind_the_last_element_of_a_split_of_unknown_length_ends_with_the_assignment() -> None:
    assert given((0, END), mentioned=[elements(0, 3)]).unmentioned() == {KEY: [(3 << OUTPUT_BITS, END)]}
    pieces = elements(2, 4), elements(8, 12)
    assert given(*pieces, mentioned=[elements(2, 3)]).unmentioned() == {KEY: [elements(3, 4), elements(8, 12)]}
    assert given(elements(64, 128)).unmentioned() == {KEY: [elements(64, 128)]}
    assert given(elements(0, 3), length=3, mentioned=[elements(1, 3), elements(0, 1)]).unmentioned() == {}
    whole = given((0, END), mentioned=[elements(0, 3)])
    whole.ended(Lease(0, Split(0)), 3)
    assert whole.unmentioned() == {}, "all was mentioned"


@pytest.mark.parametrize(
    ("length", "mentioned", "lost"), [(None, [elements(0, 1), elements(2, 3)], 1), (3, [elements(0, 2)], 2)]
)
def test_an_element_that_the_engine_loses_is_an_error(length: int | None, mentioned: list[Span], lost: int) -> None:
    with pytest.raises(PecanError, match=f"neither delivered nor left out element {lost} of split 0"):
        given((0, END), length=length, mentioned=mentioned).unmentioned()
