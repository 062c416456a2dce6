"""Orders that bring together what can be merged."""

from __future__ import annotations

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import Mode, ProfiledOp, auto_order, brought_together

DECODE = ProfiledOp("decode", 8.0, changes_kind=True)
CROP, FLIP, RESIZE = (
    ProfiledOp(name, factor, seconds=1.0) for name, factor in [("crop", 0.5), ("flip", 1), ("resize", 1)]
)
TOGETHER = ("decode", "crop", "resize")


def test_what_can_be_merged_comes_directly_behind_the_first_and_the_rest_behind_it() -> None:
    plan = auto_order([DECODE, CROP, FLIP, RESIZE], "cost")
    assert plan.order == ("decode", "crop", "flip", "resize")
    found = brought_together(plan, TOGETHER)
    assert found is not None and found.order == ("decode", "crop", "resize", "flip")
    assert [(move.name, move.from_, move.to) for move in found.moves] == [("resize", 3, 2)]
    assert "can be merged with 'decode'" in found.moves[0].reason
    assert found.seconds_after == plan.seconds_after, (
        "the model sees no difference, which is why this was not its order"
    )
    assert brought_together(found, TOGETHER) is None, "they are together"


def test_dependencies_refused_exchanges_and_fixed_operators_are_kept() -> None:
    reader = ProfiledOp("reader", 1.0, reads=frozenset({"image"}), writes=frozenset({"box"}))
    user = ProfiledOp("resize", 1.0, reads=frozenset({"box"}), writes=frozenset({"image"}))
    assert brought_together(auto_order([DECODE, CROP, reader, user], "cost"), TOGETHER) is None
    forbidden = auto_order([DECODE, CROP, FLIP, RESIZE], "cost", forbidden=[("flip", "resize")])
    assert brought_together(forbidden, TOGETHER) is None
    pinned = ProfiledOp("flip", 1.0, keep_position=True)
    assert brought_together(auto_order([DECODE, CROP, pinned, RESIZE], "cost"), TOGETHER) is None


@pytest.mark.parametrize("mode", ["strict", "off"])
def test_modes_that_keep_results_bring_nothing_together(mode: Mode) -> None:
    assert brought_together(auto_order([DECODE, CROP, FLIP, RESIZE], mode), TOGETHER) is None


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(PlanError, match="'blur'"):
        brought_together(auto_order([DECODE, CROP], "cost"), ["decode", "blur"])
