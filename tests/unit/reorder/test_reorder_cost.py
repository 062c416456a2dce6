"""The search for the order of least estimated time, and what columns forbid."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import CostCurve, ProfiledOp, auto_order, predict
from tests.unit.commuting import any_pair


def test_no_exchange_is_made_that_gains_nothing() -> None:
    ops = [ProfiledOp(name, 1.0, seconds=seconds) for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 2.0))]
    assert auto_order(ops, "safe", commutes=any_pair).moves == ()
    flat = CostCurve(((10.0, 1.0), (1000.0, 1.0)))
    ops = [
        ProfiledOp("label", 1.0, seconds=flat, bytes_in=1000.0),
        ProfiledOp("resize", 0.5, seconds=CostCurve(((500.0, 1.0), (1000.0, 2.0))), bytes_in=1000.0),
    ]
    plan = auto_order(ops, "safe", commutes=any_pair)
    assert not plan.changed and plan.seconds_before == pytest.approx(3.0)


def test_predicted_loads_follow_the_factors() -> None:
    ops = [ProfiledOp("keep", 0.25, elements=0.5, seconds=1.0), ProfiledOp("b", 3.0), ProfiledOp("c", 1.0, seconds=2.0)]
    keep, b, c = predict(ops, ["keep", "b", "c"])
    assert keep == ("keep", 1.0, 1.0, 1.0)
    assert b == pytest.approx(("b", 0.5, 0.5, None))
    assert c == pytest.approx(("c", 1.5, 0.5, 1.0))
    with pytest.raises(PlanError, match="order must name each op once"):
        predict(ops, ["keep"])


def test_without_times_the_volume_of_data_decides_and_no_speedup_is_claimed() -> None:
    ops = [ProfiledOp("pad", 4.0), ProfiledOp("crop", 0.1), ProfiledOp("resize", 0.9)]
    plan = auto_order(ops, "safe", commutes=any_pair)
    assert plan.order == ("crop", "resize", "pad")
    assert plan.expected_speedup is None


def test_a_curve_runs_through_its_points_and_stays_sane_outside_of_them() -> None:
    curve = CostCurve(((200.0, 3.0), (100.0, 2.0)))
    assert curve.points == ((100.0, 2.0), (200.0, 3.0))
    assert [curve.at(size) for size in (100.0, 150.0, 200.0, 300.0, 50.0)] == pytest.approx([2.0, 2.5, 3.0, 4.0, 1.5])
    steep = CostCurve(((100.0, 1.0), (200.0, 10.0)))
    assert steep.at(50.0) == pytest.approx(0.5)
    decreasing_steps = CostCurve(((100.0, 2.0), (200.0, 1.0)))
    assert decreasing_steps.at(50.0) == 2.0 and decreasing_steps.at(400.0) == 1.0
    single = CostCurve(((100.0, 2.0),))
    assert [single.at(50.0), single.at(100.0), single.at(400.0)] == [1.0, 2.0, 8.0]


def test_curves_refuse_nonsense() -> None:
    with pytest.raises(PlanError, match="at least one"):
        CostCurve(())
    with pytest.raises(PlanError, match="same number of bytes"):
        CostCurve(((1.0, 1.0), (1.0, 2.0)))
    for point in ((0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))):
        with pytest.raises(PlanError, match="bytes must be positive"):
            CostCurve((point,))
    with pytest.raises(PlanError, match="needs bytes_in"):
        ProfiledOp("op", 1.0, seconds=CostCurve(((1.0, 1.0),)))


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
    for pairs, order in (([("b", "a")], ("b", "a")), ({("a", "b")}, ("b", "a")), ((), ("a", "b"))):
        assert auto_order(ops, "safe", commutes=pairs).order == order
    ops = [
        op("make", 2.0, {"a"}, {"b"}),
        ProfiledOp("batch", 1.0, fixed="batch"),
        op("other", 1.0, {"a"}, {"a"}),
        op("use", 0.5, {"b"}, {"b"}),
    ]
    assert auto_order(ops).order == ("make", "batch", "use", "other")
