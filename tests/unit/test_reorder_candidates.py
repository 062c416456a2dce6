"""Orders to fall back on, exchanges that a sample allows, and the look after the first epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import NEUTRAL_BAND, Mode, ProfiledOp, auto_order, candidates, predict, revalidate

IMAGE = [
    ProfiledOp("flip", 1.0, seconds=1.0),
    ProfiledOp("rotate", 1.0, seconds=4.0),
    ProfiledOp("resize", 0.5, seconds=1.0),
    ProfiledOp("cast", 0.5, seconds=0.2),
]
USER = tuple(op.name for op in IMAGE)


def estimated(order: tuple[str, ...]) -> float:
    return sum(load.seconds or 0.0 for load in predict(IMAGE, order))


# --- candidates --------------------------------------------------------------------------------------------


def test_candidates_begin_with_the_best_order_and_end_with_the_users() -> None:
    orders = [plan.order for plan in candidates(IMAGE, "cost")]
    assert orders[0] == auto_order(IMAGE, "cost").order
    assert orders[-1] == USER
    assert len(set(orders)) == len(orders)
    costs = [estimated(order) for order in orders]
    assert costs == sorted(costs)


def test_a_move_that_fails_does_not_cost_the_others() -> None:
    orders = [plan.order for plan in candidates(IMAGE, "cost")]
    assert orders[0] == ("cast", "resize", "flip", "rotate")
    assert ("resize", "flip", "rotate", "cast") in orders
    assert ("cast", "flip", "rotate", "resize") in orders


@pytest.mark.parametrize("mode", ["paper", "cost", "strict"])
def test_each_candidate_explains_itself(mode: Mode) -> None:
    for plan in candidates(IMAGE, mode, commutes=lambda pair: True):
        assert plan.mode == mode
        assert bool(plan.moves) == plan.changed
        for move in plan.moves:
            assert USER[move.from_] == move.name == plan.order[move.to] and move.reason


def test_off_and_what_cannot_be_improved_have_one_candidate() -> None:
    assert [plan.order for plan in candidates(IMAGE, "off")] == [USER]
    assert [plan.order for plan in candidates(IMAGE[:2], "cost")] == [("flip", "rotate")]
    assert [plan.order for plan in candidates([], "cost")] == [()]


def test_the_number_of_candidates_is_bounded() -> None:
    ops = [ProfiledOp("work", 1.0, seconds=9.0)]
    ops += [ProfiledOp(f"shrink{number}", 0.5 + number / 100, seconds=0.1) for number in range(12)]
    plans = list(candidates(ops, "cost", limit=5))
    assert 2 < len(plans) <= 6 and not plans[-1].changed
    assert [plan.changed for plan in candidates(ops, "cost", limit=1)] == [True, False]
    with pytest.raises(PlanError, match="limit"):
        candidates(ops, limit=0)


def test_a_forbidden_exchange_is_not_made_but_others_are() -> None:
    plan = auto_order(IMAGE, "cost", forbidden=[("cast", "resize")])
    assert plan.order == ("resize", "cast", "flip", "rotate")
    assert plan.forbidden == {("cast", "resize")}
    assert any("exchange was refused" in rejected.reason for rejected in plan.rejected)


def test_only_movable_ops_move() -> None:
    assert auto_order(IMAGE, "paper", movable=["cast"]).order == ("cast", "flip", "rotate", "resize")
    assert auto_order(IMAGE, "paper", movable=[]).order == USER


# --- strict ------------------------------------------------------------------------------------------------


def test_strict_exchanges_only_what_left_the_result_equal() -> None:
    plan = auto_order(IMAGE, "strict", commutes={("flip", "resize"), ("cast", "flip"), ("cast", "rotate")})
    assert plan.order == ("flip", "rotate", "resize", "cast")
    assert any("'rotate'" in rejected.reason and rejected.name == "resize" for rejected in plan.rejected)


def test_strict_accepts_pairs_in_either_direction() -> None:
    pairs = {("resize", "flip"), ("rotate", "resize")}
    assert auto_order(IMAGE, "strict", commutes=frozenset(pairs)).order == ("resize", "flip", "rotate", "cast")


def test_strict_asks_once_about_each_pair_that_it_would_exchange() -> None:
    asked: list[tuple[str, str]] = []

    def commutes(pair: tuple[str, str]) -> bool:
        asked.append(pair)
        return "cast" not in pair

    plan = auto_order(IMAGE, "strict", commutes=commutes)
    assert plan.order == ("resize", "flip", "rotate", "cast")
    assert len(asked) == len(set(asked))
    assert all(USER.index(first) < USER.index(second) for first, second in asked)
    assert ("flip", "rotate") not in asked


def test_strict_knows_of_nothing_without_evidence() -> None:
    assert auto_order(IMAGE, "strict").order == USER


# --- after the first epoch ---------------------------------------------------------------------------------


def test_the_same_verdicts_keep_the_plan() -> None:
    for mode in ("paper", "cost", "off"):
        plan = auto_order(IMAGE, mode)
        assert revalidate(plan, [replace(op, inflation=op.inflation * 0.99999) for op in IMAGE[2:]] + IMAGE[:2]) is None


def test_a_changed_verdict_changes_the_papers_order_and_says_so() -> None:
    plan = auto_order(IMAGE, "paper")
    assert plan.order == ("cast", "resize", "flip", "rotate")
    new = revalidate(plan, [replace(op, inflation=1.3) if op.name == "resize" else op for op in IMAGE])
    assert new is not None and new.order == ("cast", "flip", "rotate", "resize")
    assert new.reason == "'resize' inflates (factor 1.3), not deflates (0.5)"


def test_noise_within_the_band_changes_nothing() -> None:
    ops = [ProfiledOp("pad", 4.0), ProfiledOp("speed", 1.0), ProfiledOp("reverb", 1.0)]
    plan = auto_order(ops, "paper", neutral_band=NEUTRAL_BAND)
    assert revalidate(plan, [ops[0], replace(ops[1], inflation=1.007), ops[2]]) is None


def test_two_deflating_ops_do_not_swap_back_and_forth() -> None:
    plan = auto_order(IMAGE, "paper")
    in_adopted_order = sorted(IMAGE, key=lambda op: plan.order.index(op.name))
    assert revalidate(plan, in_adopted_order) is None


def test_a_gain_below_the_threshold_is_left_alone() -> None:
    ops = [ProfiledOp("a", 0.9, seconds=1.0), ProfiledOp("b", 0.9, seconds=0.8)]
    plan = auto_order(ops, "cost")
    times = {"a": 0.79, "b": 0.9}
    slightly = [replace(op, seconds=times[op.name]) for op in ops]
    assert plan.order == ("b", "a")
    assert revalidate(plan, slightly) is None
    new = revalidate(plan, slightly, min_gain=0.0)
    assert new is not None and new.order == ("a", "b")
    assert new.reason.startswith("estimated time 0.9")


def test_times_of_the_whole_pass_are_taken_as_of_the_adopted_order() -> None:
    plan = auto_order(IMAGE, "cost")
    measured = {load.name: load.seconds for load in predict(IMAGE, plan.order)}
    assert revalidate(plan, [replace(op, seconds=measured[op.name]) for op in IMAGE]) is None


def test_a_dependency_that_only_the_whole_pass_showed_ends_the_order() -> None:
    plan = auto_order(IMAGE, "cost")
    assert plan.order.index("cast") < plan.order.index("rotate")
    tied: dict[str, Any] = {"rotate": {"writes": frozenset({"angle"})}, "cast": {"reads": frozenset({"angle"})}}
    new = revalidate(plan, [replace(op, **tied.get(op.name, {})) for op in IMAGE])
    assert new is not None and new.order.index("rotate") < new.order.index("cast")
    assert "dependency" in new.reason


def test_a_dependency_that_is_gone_lets_the_paper_move_again() -> None:
    made, used = frozenset({"angle"}), replace(IMAGE[2], reads=frozenset({"angle"}))
    plan = auto_order([replace(IMAGE[0], writes=made), used], "paper")
    assert not plan.changed
    new = revalidate(plan, [IMAGE[0], IMAGE[2]])
    assert new is not None and new.order == ("resize", "flip") and "gone" in new.reason


def test_ops_that_take_no_time_give_no_reason_to_change() -> None:
    plan = auto_order(IMAGE, "cost")
    assert revalidate(plan, [replace(op, seconds=0.0) for op in IMAGE]) is None


def test_an_op_found_to_change_the_rank_goes_back_to_its_place() -> None:
    plan = auto_order(IMAGE, "cost")
    new = revalidate(plan, [replace(op, changes_rank=op.name == "cast") for op in IMAGE])
    assert new is not None and new.order == ("resize", "flip", "rotate", "cast")
    assert "fixed" in new.reason


def test_moves_that_a_sample_refused_stay_refused() -> None:
    second = next(plan for plan in candidates(IMAGE, "cost") if plan.order[0] == "resize")
    assert revalidate(second, [replace(op, seconds=9.0) if op.name == "flip" else op for op in IMAGE]) is None
    *_, users = candidates(IMAGE, "cost")
    assert revalidate(users, IMAGE) is None


def test_other_ops_than_the_plans_are_refused() -> None:
    with pytest.raises(PlanError, match="the plan has the ops"):
        revalidate(auto_order(IMAGE), IMAGE[:2])
    with pytest.raises(PlanError, match="min_gain"):
        revalidate(auto_order(IMAGE), IMAGE, min_gain=1.0)
