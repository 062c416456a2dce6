"""What columns forbid, and what they do not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pecan_ray.reorder import Mode, ProfiledOp, auto_order
from tests.unit.commuting import any_pair


def op(
    name: str,
    inflation: float = 1.0,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    drops: Iterable[str] = (),
    creates: Iterable[str] = (),
    custom_dtype_cast: bool = False,
) -> ProfiledOp:
    return ProfiledOp(
        name,
        inflation,
        custom_dtype_cast=custom_dtype_cast,
        reads=frozenset(reads),
        writes=frozenset(writes),
        drops=frozenset(drops),
        creates=frozenset(creates),
    )


BLOCKED = {
    "creation": [op("make", 2.0, {"a"}, {"a", "b"}, creates={"b"}), op("use", 0.5, {"b"}, {"b"})],
    "creation, known from writes alone": [op("make", 2.0, {"a"}, {"b"}), op("use", 0.5, {"b"}, {"b"})],
    "creation, then a drop": [op("make", 2.0, {"a"}, {"b"}), op("forget", 0.5, drops={"b"})],
    "creation, then an overwriting": [op("make", 2.0, {"a"}, {"b"}), op("again", 0.5, {"a"}, {"b"})],
    "drop of what was read": [op("look", 1.0, {"a"}, {"b"}), op("forget", 0.5, drops={"a"})],
    "drop, then a creation": [op("forget", 2.0, drops={"a"}), op("make", 0.5, {"b"}, {"a"})],
    "replacement of what was read": [op("look", 1.0, {"a"}, {"b"}), op("replace", 0.5, {"c"}, {"a"})],
}


@pytest.mark.parametrize("mode", ["pecan", "safe", "strict"])
@pytest.mark.parametrize("ops", BLOCKED.values(), ids=list(BLOCKED))
def test_an_op_never_passes_the_one_it_depends_on(ops: list[ProfiledOp], mode: Mode) -> None:
    plan = auto_order(ops, mode, commutes=lambda pair: True)
    assert plan.order == (ops[0].name, ops[1].name)
    (rejected,) = plan.rejected
    assert rejected.name == ops[1].name
    assert f"not moved before {ops[0].name!r}" in rejected.reason and "column" in rejected.reason


def test_a_blocked_inflating_op_says_what_it_was_not_moved_behind() -> None:
    ops = [op("make", 2.0, {"a"}, {"b"}), op("use", 1.0, {"b"}, {"b"})]
    (rejected,) = auto_order(ops).rejected
    assert rejected.name == "make" and "not moved after 'use'" in rejected.reason


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


def test_a_dependency_through_a_third_op_holds() -> None:
    ops = [op("a", 2.0, {"x"}, {"y"}), op("b", 1.0, {"y"}, {"z"}), op("c", 0.1, {"z"}, {"z"})]
    for mode in ("pecan", "safe"):
        assert auto_order(ops, mode, commutes=any_pair).order == ("a", "b", "c")


def test_a_value_derived_from_the_image_stays_behind_what_changes_the_image() -> None:
    ops = [op("crop", 1.5, {"image"}, {"image"}), op("measure", 1.0, {"image"}, {"size"})]
    plan = auto_order(ops, "safe", commutes=any_pair)
    assert plan.order == ("crop", "measure")
    assert "'measure' derives from column 'image', which 'crop' transforms" in plan.rejected[0].reason


def test_a_filter_by_label_moves_ahead_of_work_on_the_image() -> None:
    blur = op("blur", 1.0, {"image"}, {"image"})
    keep = ProfiledOp("keep_cats", 0.2, elements=0.2, reads=frozenset({"label"}))
    assert auto_order([blur, keep], "safe", commutes=any_pair).order == ("keep_cats", "blur")


def test_a_filter_that_looks_at_the_image_does_not_pass_work_on_it() -> None:
    blur = op("blur", 1.0, {"image"}, {"image"})
    keep = ProfiledOp("keep_sharp", 0.2, elements=0.2, reads=frozenset({"image"}))
    assert auto_order([blur, keep], "safe", commutes=any_pair).order == ("blur", "keep_sharp")


def test_augmentations_of_one_column_may_look_things_up_in_another() -> None:
    both = {"source", "frames"}
    ops = [op("pad", 4.0, both, both), op("mask", 1.0, both, {"source"})]
    assert auto_order(ops, "safe", commutes=any_pair).order == ("mask", "pad")


def test_no_op_moves_behind_a_cast_to_a_custom_type_by_cost() -> None:
    ops = [op("pad", 4.0), op("cast", 0.5, custom_dtype_cast=True), op("resize", 0.5)]
    plan = auto_order(ops, "safe", commutes=any_pair)
    assert plan.order.index("pad") < plan.order.index("cast") and plan.order[0] == "resize"


def test_unknown_columns_put_no_constraint() -> None:
    assert auto_order([op("a", 2.0), op("b", 0.5)], "safe", commutes=any_pair).order == ("b", "a")


def test_columns_are_no_dependency_across_a_barrier() -> None:
    ops = [
        op("make", 2.0, {"a"}, {"b"}),
        ProfiledOp("batch", 1.0, fixed="batch"),
        op("other", 1.0, {"a"}, {"a"}),
        op("use", 0.5, {"b"}, {"b"}),
    ]
    assert auto_order(ops).order == ("make", "batch", "use", "other")
