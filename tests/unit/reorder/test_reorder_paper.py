"""Algorithm 2 of the Pecan paper: its barriers, its exception, and what it says of moves.

That it is the paper's is shown in test_reorder_properties.py, and on the paper's pipelines beside AutoOrder's tests.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import NEUTRAL_BAND, Mode, ProfiledOp, auto_order


def test_a_move_says_what_moved_from_where_to_where_and_why() -> None:
    flip = ProfiledOp("flip", 1.0)
    (move,) = auto_order([flip, ProfiledOp("rotate", 1.0), ProfiledOp("resize", 0.6087)]).moves
    name, start, to, reason = move
    assert (name, start, to) == ("resize", 2, 0) == (move.name, move.from_, move.to)
    assert "0.609" in reason and "'flip'" in reason and "smaller" in reason
    (move,) = auto_order([ProfiledOp("normalize", 3.997), flip]).moves
    assert (move.name, move.from_, move.to) == ("normalize", 0, 1)
    assert "larger" in move.reason and "'flip'" in move.reason


@pytest.mark.parametrize(
    ("barrier", "reason"),
    [
        (ProfiledOp("barrier", 1.0, keep_position=True), "keep_position=True"),
        (ProfiledOp("barrier", 1.0, changes_kind=True), "between numbers and text"),
        (ProfiledOp("barrier", 1.0, changes_rank=True), "number of dimensions"),
        (ProfiledOp("barrier", 1.0, fixed="shuffle"), "shuffle"),
        (ProfiledOp("barrier", 0.5, fixed="batch", keep_position=True), "keep_position=True; batch"),
    ],
)
@pytest.mark.parametrize("mode", ["pecan", "safe", "strict"])
def test_nothing_crosses_a_barrier(barrier: ProfiledOp, reason: str, mode: Mode) -> None:
    ops = [
        ProfiledOp("a", 4.0),
        ProfiledOp("b", 1.0),
        barrier,
        ProfiledOp("c", 1.0),
        ProfiledOp("d", 0.1),
    ]
    plan = auto_order(ops, mode, commutes=lambda pair: True)
    assert plan.order == ("b", "a", "barrier", "d", "c")
    ((name, why),) = plan.fixed
    assert name == "barrier" and reason in why


def test_a_deflating_cast_to_bfloat16_goes_to_the_end() -> None:
    ops = [
        ProfiledOp("cast", 0.5, custom_dtype_cast=True),
        ProfiledOp("pad", 2.0),
        ProfiledOp("flip", 1.0),
        ProfiledOp("resize", 0.5),
    ]
    plan = auto_order(ops)
    assert plan.order == ("resize", "flip", "pad", "cast")
    assert "CPUs" in next(move.reason for move in plan.moves if move.name == "cast")


def test_the_noise_of_a_sample_does_not_move_an_op_when_a_band_is_given() -> None:
    ops = [ProfiledOp("pad", 4.0), ProfiledOp("speed", 1.007), ProfiledOp("reverb", 0.998), ProfiledOp("pitch", 1.0)]
    assert auto_order(ops, neutral_band=NEUTRAL_BAND).order == ("speed", "reverb", "pitch", "pad")
    assert auto_order(ops).order == ("reverb", "pitch", "pad", "speed")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        *(({"inflation": one}, "'op': inflation must be a finite") for one in (float("nan"), -1.0, 0.0, True, "2")),
        ({"name": ""}, "non-empty string"),
        ({"seconds": float("nan")}, "seconds must be a finite number >= 0"),
        ({"elements": 0.0}, "elements must be"),
        ({"bytes_in": 0.0}, "bytes_in must be"),
        ({"reads": "image"}, "a set of column names"),
    ],
)
def test_impossible_facts_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ProfiledOp(**{"name": "op", "inflation": 1.0, **facts})


def test_unknown_modes_and_names_are_refused() -> None:
    ops, mode, name = [ProfiledOp("flip", 1.0)], cast(Mode, "best"), cast(ProfiledOp, "flip")
    with pytest.raises(PlanError, match="mode must be one of 'strict', 'safe', 'pecan', 'off'"):
        auto_order(ops, mode)
    with pytest.raises(PlanError, match="forbidden names the op 'flop'"):
        auto_order(ops, forbidden=[("flip", "flop")])
    with pytest.raises(PlanError, match="two ops are named 'flip'"):
        auto_order([ProfiledOp("flip", 1.0), ProfiledOp("flip", 1.0)])
    with pytest.raises(PlanError, match="neutral_band"):
        auto_order(ops, neutral_band=1.0)
    with pytest.raises(PlanError, match="needs ProfiledOp"):
        auto_order([name])
