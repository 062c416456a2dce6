"""Operators that are never exchanged, whatever a sample shows."""

from __future__ import annotations

import pytest

from pecan_ray.reorder.never import OpFacts, never

IMAGE = frozenset({"image"})
RESIZE = OpFacts("resize", IMAGE, IMAGE, IMAGE, resizes={"image": frozenset({0, 1})})
GAMMA = OpFacts("gamma", IMAGE, IMAGE, IMAGE, pointwise=True)
HIDE = OpFacts("hide", IMAGE | {"boxes"}, IMAGE, IMAGE | {"boxes"})
TRIM = OpFacts("trim", IMAGE, IMAGE, IMAGE, removes=IMAGE)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (HIDE, RESIZE, "'hide' reads column 'boxes' beside 'image', of which 'resize' moves or cuts"),
        (OpFacts("dark", IMAGE, decides=True), GAMMA, "'dark' decides by column 'image' which elements there are"),
        (
            OpFacts("mean", IMAGE, frozenset({"mean"})),
            GAMMA,
            "'mean' derives from column 'image', which 'gamma' changes",
        ),
        (TRIM, GAMMA, "'trim' takes parts of column 'image' away by what they are, and 'gamma' changes it"),
        (
            RESIZE,
            OpFacts("crop", IMAGE, IMAGE, resizes={"image": frozenset({1})}),
            "both cut or rescale",
        ),
        (OpFacts("a", IMAGE, IMAGE, draws=True), OpFacts("b", draws=True), "draw random numbers from one generator"),
        (OpFacts("noise", IMAGE, IMAGE, unequal=True), GAMMA, "'noise' makes something else of an equal element"),
    ],
)
def test_structure_decides_before_numbers(first: OpFacts, second: OpFacts, why: str) -> None:
    assert why in never(first, second) and why in never(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (GAMMA, RESIZE),
        (HIDE, GAMMA),
        (OpFacts("both", IMAGE | {"boxes"}, IMAGE | {"boxes"}, IMAGE | {"boxes"}), GAMMA),
        (OpFacts("cats", frozenset({"label"}), decides=True), RESIZE),
        (TRIM, OpFacts("scale", frozenset({"sound"}), frozenset({"sound"}))),
        (
            OpFacts("frames", IMAGE, IMAGE, resizes={"image": frozenset({0})}),
            OpFacts("b", IMAGE, IMAGE, resizes={"image": frozenset({1})}),
        ),
        (OpFacts("a", IMAGE, IMAGE, draws=True), RESIZE),
    ],
)
def test_what_is_left_is_measured(first: OpFacts, second: OpFacts) -> None:
    assert not never(first, second) and not never(second, first)
