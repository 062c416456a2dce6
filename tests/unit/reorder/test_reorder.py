"""What orders are asked for, what is never exchanged, and Algorithm 2 of the Pecan paper.

That mode "pecan" is that algorithm is shown in test_reorder_properties.py, and on the paper's pipelines beside
AutoOrder's tests.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    ],
)
def test_bytes_of_all_columns_and_elements_count_whether_known_by_shapes_or_measured(
    before: Any, after: Any, counts: dict[str, Any], factor: float
) -> None:
    assert inflation_factor(before, after, **counts) == pytest.approx(factor)


@pytest.mark.parametrize(
    "unknown", [((None, 3), "uint8"), (None, "uint8"), ((3,), None), ((), "string"), ((), object), ((), "U")]
)
def test_what_is_not_known_beforehand_gives_no_static_factor(unknown: tuple[None, str]) -> None:
    known = {"x": ((3,), "uint8")}
    assert inflation_factor(known, {**known, "y": unknown}) is None
    assert inflation_factor({**known, "y": unknown}, known) is None


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


def test_neutral_ops_keep_their_order_and_without_times_factors_decide() -> None:
    ops = [ProfiledOp(name, 1.0, seconds=seconds) for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 2.0))]
    assert auto_order(ops, "safe", commutes=any_pair).moves == ()
    ops = [ProfiledOp("pad", 4.0), ProfiledOp("crop", 0.1), ProfiledOp("resize", 0.9)]
    assert auto_order(ops, "safe", commutes=any_pair).order == ("crop", "resize", "pad")


def op(
    name: str,
    inflation: float = 1.0,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    drops: Iterable[str] = (),
    creates: Iterable[str] = (),
) -> ProfiledOp:
    return ProfiledOp(
        name,
        inflation,
        reads=frozenset(reads),
        writes=frozenset(writes),
        drops=frozenset(drops),
        creates=frozenset(creates),
    )


def test_an_op_moves_up_to_the_one_it_depends_on_and_no_further() -> None:
    image = {"image"}
    ops = [
        op("mask", 1.0, {"boxes"}, {"mask"}),
        op("flip", 1.0, image, image),
        op("blur", 1.0, image, image),
        op("apply", 0.5, {"mask", "image"}, image, drops={"mask"}),
    ]
    for mode in ("pecan", "safe"):
        assert auto_order(ops, mode, commutes=any_pair).order == ("mask", "apply", "flip", "blur")


def test_filters_and_pairs_move_and_columns_are_no_dependency_across_a_barrier() -> None:
    blur = op("blur", 1.0, {"image"}, {"image"})
    keep = ProfiledOp("keep_cats", 0.2, elements=0.2, reads=frozenset({"label"}))
    assert auto_order([blur, keep], "safe", commutes=any_pair).order == ("keep_cats", "blur")
    ops = [op("a", 2.0), op("b", 0.5)]
    assert auto_order(ops, "safe", commutes=any_pair).order == ("b", "a")
    assert auto_order(ops, "safe").order == ("a", "b"), "unless they may be exchanged"
    ops = [
        op("make", 2.0, {"a"}, {"b"}),
        ProfiledOp("batch", 1.0, fixed="batch"),
        op("other", 1.0, {"a"}, {"a"}),
        op("use", 0.5, {"b"}, {"b"}),
    ]
    assert auto_order(ops).order == ("make", "batch", "use", "other")


Names = frozenset[str]
NONE = Names()


def made(name: str, reads: Names = NONE, writes: Names = NONE, arrays: Names = NONE, **how: Any) -> ProfiledOp:
    return ProfiledOp(name, 1.0, reads=reads, writes=writes, arrays=arrays, **how)


IMAGE = frozenset({"image"})
RESIZE = made("resize", IMAGE, IMAGE, IMAGE, changed_axes={"image": frozenset({0, 1})})
GAMMA = made("gamma", IMAGE, IMAGE, IMAGE, pointwise=True)
HIDE = made("hide", IMAGE | {"boxes"}, IMAGE, IMAGE | {"boxes"})
TRIM = made("trim", IMAGE, IMAGE, IMAGE, filtered_columns=IMAGE)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (HIDE, RESIZE, "'hide' reads column 'boxes' beside 'image', of which 'resize' moves or cuts"),
        (made("dark", IMAGE, decides=True), GAMMA, "'dark' decides by column 'image' which elements there are"),
        (
            made("mean", IMAGE, frozenset({"mean"})),
            GAMMA,
            "'mean' derives from column 'image', which 'gamma' changes",
        ),
        (TRIM, GAMMA, "'trim' takes parts of column 'image' away by what they are, and 'gamma' changes it"),
        (
            RESIZE,
            made("crop", IMAGE, IMAGE, changed_axes={"image": frozenset({1})}),
            "both cut or rescale",
        ),
        (
            made("a", IMAGE, IMAGE, draws=True),
            made("b", draws=True),
            "draw random numbers from one generator",
        ),
        (made("noise", IMAGE, IMAGE, unequal=True), GAMMA, "'noise' makes something else of an equal element"),
        (GAMMA, RESIZE, ""),
        (HIDE, GAMMA, ""),
        (made("both", IMAGE | {"boxes"}, IMAGE | {"boxes"}, IMAGE | {"boxes"}), GAMMA, ""),
        (made("cats", frozenset({"label"}), decides=True), RESIZE, ""),
        (TRIM, made("scale", frozenset({"sound"}), frozenset({"sound"})), ""),
        (
            made("frames", IMAGE, IMAGE, changed_axes={"image": frozenset({0})}),
            made("b", IMAGE, IMAGE, changed_axes={"image": frozenset({1})}),
            "",
        ),
        (made("a", IMAGE, IMAGE, draws=True), RESIZE, ""),
    ],
)
def test_structure_decides_before_numbers_and_the_rest_is_measured(
    first: ProfiledOp, second: ProfiledOp, why: str
) -> None:
    for found in (never(first, second), never(second, first)):
        assert why in found and bool(found) == bool(why)


def test_a_move_says_what_moved_from_where_to_where_and_why() -> None:
    flip = ProfiledOp("flip", 1.0)
    (move,) = auto_order([flip, ProfiledOp("rotate", 1.0), ProfiledOp("resize", 0.6087)]).moves
    name, start, to, reason = move
    assert (name, start, to) == ("resize", 2, 0) == (move.name, move.from_, move.to)
    assert "0.609" in reason and "'flip'" in reason and "smaller" in reason
    (move,) = auto_order([ProfiledOp("normalize", 3.997), flip]).moves
    assert (move.name, move.from_, move.to) == ("normalize", 0, 1)
    assert "larger" in move.reason and "'flip'" in move.reason
    (move,) = auto_order([ProfiledOp("cast", 0.5, custom_dtype_cast=True), flip]).moves
    assert (move.name, move.to) == ("cast", 1) and "CPUs" in move.reason


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
