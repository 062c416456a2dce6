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
) -> ProfiledOp:
    return ProfiledOp(
        name,
        inflation,
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
    assert auto_order(ops, mode, commutes=any_pair).order == (ops[0].name, ops[1].name)


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


def test_a_filter_by_label_moves_ahead_of_work_on_the_image() -> None:
    blur = op("blur", 1.0, {"image"}, {"image"})
    keep = ProfiledOp("keep_cats", 0.2, elements=0.2, reads=frozenset({"label"}))
    assert auto_order([blur, keep], "safe", commutes=any_pair).order == ("keep_cats", "blur")


def test_pairs_that_may_be_exchanged_are_given_in_any_order() -> None:
    ops = [op("a", 2.0), op("b", 0.5)]
    for pairs, order in (([("b", "a")], ("b", "a")), ({("a", "b")}, ("b", "a")), ((), ("a", "b"))):
        assert auto_order(ops, "safe", commutes=pairs).order == order


def test_columns_are_no_dependency_across_a_barrier() -> None:
    ops = [
        op("make", 2.0, {"a"}, {"b"}),
        ProfiledOp("batch", 1.0, fixed="batch"),
        op("other", 1.0, {"a"}, {"a"}),
        op("use", 0.5, {"b"}, {"b"}),
    ]
    assert auto_order(ops).order == ("make", "batch", "use", "other")
