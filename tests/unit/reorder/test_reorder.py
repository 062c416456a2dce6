"""What orders are asked for, what is never exchanged, and Algorithm 2 of the Pecan paper.

That mode "pecan" is that algorithm is shown in test_reorder_properties.py, and on the paper's pipelines beside
AutoOrder's tests.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import NEUTRAL_BAND, Mode, ProfiledOp, auto_order, inflation_factor
from pecan_ray.reorder.policy import never
from tests.unit.commuting import any_pair

LABELLED = {"label": ((), "int64")}
FOUR = {"x": ((4,), "uint8")}
MASKED = {**FOUR, "mask": ((4,), "bool")}


@pytest.mark.parametrize(
    ("before", "after", "counts", "factor"),
    [
        (
            {"image": ((480, 360, 3), "float32"), **LABELLED},
            {"image": ((224, 224, 3), "float32"), **LABELLED},
            {},
            (224 * 224 * 3 * 4 + 8) / (480 * 360 * 3 * 4 + 8),
        ),
        *(
            ({"x": ((7,), "float32")}, {"x": ((7,), dtype)}, {}, factor)
            for dtype, factor in (("float16", 0.5), (np.float64, 2.0), ("bfloat16", 0.5), ("int4", 0.125))
        ),
        (FOUR, MASKED, {}, 2.0),
        (MASKED, FOUR, {}, 0.5),
        (FOUR, FOUR, {"elements_in": 100, "elements_out": 30}, 0.3),
        (FOUR, {"x": ((64, 4), "uint8")}, {"elements_in": 64, "elements_out": 1}, 1.0),
        (518_400, 602_112, {}, 602_112 / 518_400),
        (100.0, 50.0, {"elements_in": 300, "elements_out": 150}, 0.25),
        ({"x": ((100,), "uint8")}, 25.0, {}, 0.25),
        (10, 10, {"elements_in": 5, "elements_out": 0}, 0.0),
        # What is not known beforehand gives no factor.
        *(
            (FOUR, {**FOUR, "y": unknown}, {}, None)
            for unknown in (
                ((None, 3), "uint8"),
                (None, "uint8"),
                ((3,), None),
                ((), "string"),
                ((), object),
                ((), "U"),
            )
        ),
        ({**FOUR, "y": (None, "uint8")}, FOUR, {}, None),
    ],
)
def test_bytes_of_all_columns_and_elements_count_whether_known_by_shapes_or_measured(
    before: Any, after: Any, counts: dict[str, Any], factor: float | None
) -> None:
    assert inflation_factor(before, after, **counts) == (None if factor is None else pytest.approx(factor))


@pytest.mark.parametrize(
    ("before", "after", "counts", "said"),
    [
        ({}, FOUR, {}, "no bytes"),
        (0, 5, {}, "no bytes"),
        (FOUR, FOUR, {"elements_in": 0}, "elements_in must be a finite number > 0"),
        (FOUR, FOUR, {"elements_out": -1}, "elements_out"),
        (FOUR, float("nan"), {}, "after must be"),
        (FOUR, {"x": ((-1,), "uint8")}, {}, r"after\['x'\] has a negative dimension"),
        (FOUR, {"x": ((1,), "float31")}, {}, "of a dtype that NumPy knows, but got .*float31"),
        (FOUR, {"x": 3}, {}, r"must be \(shape, dtype\)"),
    ],
)
def test_nonsense_is_refused_by_name(before: Any, after: Any, counts: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        inflation_factor(before, after, **counts)


def op(name: str, inflation: float = 1.0, reads: str = "", writes: str = "", **facts: Any) -> ProfiledOp:
    return ProfiledOp(name, inflation, reads=frozenset(reads.split()), writes=frozenset(writes.split()), **facts)


def test_nothing_moves_of_which_nobody_says_that_it_may_be_exchanged() -> None:
    ops = [op("pad", 4.0), op("crop", 0.1), op("resize", 0.9)]
    assert auto_order(ops, "safe").order == ("pad", "crop", "resize")


def test_the_noise_of_a_sample_does_not_move_an_op_when_a_band_is_given() -> None:
    ops = [op("pad", 4.0), op("speed", 1.007), op("reverb", 0.998), op("pitch", 1.0)]
    assert auto_order(ops, neutral_band=NEUTRAL_BAND).order == ("speed", "reverb", "pitch", "pad")
    assert auto_order(ops).order == ("reverb", "pitch", "pad", "speed")


def made(name: str, reads: str = "", writes: str = "", arrays: str = "", cuts: str = "", **facts: Any) -> ProfiledOp:
    """An operator that cuts axes of an image."""
    axes = {"image": frozenset(map(int, cuts))} if cuts else {}
    return op(name, 1.0, reads, writes, arrays=frozenset(arrays.split()), changed_axes=axes, **facts)


RESIZE = made("resize", "image", "image", "image", cuts="01")
GAMMA = made("gamma", "image", "image", "image", pointwise=True)
HIDE = made("hide", "image boxes", "image", "image boxes")
TRIM = made("trim", "image", "image", "image", filtered_columns=frozenset({"image"}))


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (HIDE, RESIZE, "'hide' reads column 'boxes' beside 'image', of which 'resize' moves or cuts"),
        (made("dark", "image", decides=True), GAMMA, "'dark' decides by column 'image' which elements there are"),
        (made("mean", "image", "mean"), GAMMA, "'mean' derives from column 'image', which 'gamma' changes"),
        (TRIM, GAMMA, "'trim' takes parts of column 'image' away by what they are, and 'gamma' changes it"),
        (RESIZE, made("crop", "image", "image", cuts="1"), "both cut or rescale"),
        (made("a", "image", "image", draws=True), made("b", draws=True), "draw random numbers from one generator"),
        (made("noise", "image", "image", unequal=True), GAMMA, "'noise' makes something else of an equal element"),
        (GAMMA, RESIZE, ""),
        (HIDE, GAMMA, ""),
        (made("both", "image boxes", "image boxes", "image boxes"), GAMMA, ""),
        (made("cats", "label", decides=True), RESIZE, ""),
        (TRIM, made("scale", "sound", "sound"), ""),
        (made("frames", "image", "image", cuts="0"), made("b", "image", "image", cuts="1"), ""),
        (made("a", "image", "image", draws=True), RESIZE, ""),
    ],
)
def test_structure_decides_before_numbers_and_the_rest_is_measured(
    first: ProfiledOp, second: ProfiledOp, why: str
) -> None:
    for found in (never(first, second), never(second, first)):
        assert why in found and bool(found) == bool(why)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"keep_position": True}, "keep_position=True"),
        ({"changes_kind": True}, "converts between numbers and text or bytes"),
        ({"changes_rank": True}, "changes the number of dimensions"),
        ({"fixed": "batch", "keep_position": True}, "keep_position=True; batch"),
    ],
)
@pytest.mark.parametrize("mode", ["pecan", "safe"])
def test_nothing_crosses_a_barrier(facts: dict[str, Any], reason: str, mode: Mode) -> None:
    ops = [op("a", 4.0), op("b"), op("barrier", **facts), op("c"), op("d", 0.1)]
    plan = auto_order(ops, mode, commutes=any_pair)
    assert plan.order == ("b", "a", "barrier", "d", "c") and plan.fixed == (("barrier", reason),)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        *(({"inflation": one}, "'op': inflation must be a finite") for one in (float("nan"), -1.0, 0.0, True, "2")),
        ({"name": ""}, "non-empty string"),
        ({"seconds": float("nan")}, "seconds must be a finite number >= 0"),
        ({"elements": 0.0}, "elements must be"),
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
