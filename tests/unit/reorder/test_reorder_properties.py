"""What holds for every pipeline, in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.reorder import Mode, OrderPlan, ProfiledOp, auto_order
from tests.unit.commuting import any_pair

MODES: tuple[Mode, ...] = ("pecan", "safe", "strict", "off")
COLUMNS = st.frozensets(st.sampled_from("abc"))


@st.composite
def pipelines(
    draw: st.DrawFn, most: int = 9, fixed: bool = True, columns: bool = True, timed: bool = False
) -> list[ProfiledOp]:
    times = st.floats(0, 10) if timed else st.none() | st.floats(0, 10)
    ops = []
    for number in range(draw(st.integers(0, most))):
        facts: dict[str, Any] = {}
        if columns:
            facts = {"reads": draw(COLUMNS), "writes": draw(COLUMNS), "drops": draw(COLUMNS)}
            facts["creates"] = facts["writes"] & draw(COLUMNS)
            facts["drops"] -= facts["writes"]
        if fixed:
            facts["keep_position"] = draw(st.integers(0, 5)) == 0
            facts["custom_dtype_cast"] = draw(st.integers(0, 5)) == 0
        ops.append(
            ProfiledOp(
                f"op{number}",
                draw(st.sampled_from([0.1, 0.5, 0.9, 1.0, 1.5, 4.0]) | st.floats(1e-3, 1e3)),
                seconds=draw(times),
                elements=draw(st.sampled_from([1.0, 1.0, 0.5, 3.0])),
                **facts,
            )
        )
    return ops


def first_of_even(pair: tuple[str, str]) -> bool:
    return (int(pair[0][2:]) + int(pair[1][2:])) % 2 == 0


def plans(ops: list[ProfiledOp]) -> Iterable[OrderPlan]:
    for mode in MODES:
        yield auto_order(ops, mode, commutes=first_of_even)


@given(pipelines())
def test_the_result_is_a_permutation_in_which_fixed_ops_and_sections_keep_their_places(ops: list[ProfiledOp]) -> None:
    section_at = list(itertools.accumulate(int(op.keep_position) for op in ops))
    section_of = {op.name: section for op, section in zip(ops, section_at, strict=True)}
    for plan in plans(ops):
        assert sorted(plan.order) == sorted(op.name for op in ops)
        assert [section_of[name] for name in plan.order] == section_at
        for op, name in zip(ops, plan.order, strict=True):
            assert not op.keep_position or name == op.name


@given(pipelines())
def test_no_op_passes_the_one_that_makes_or_ends_its_columns(ops: list[ProfiledOp]) -> None:
    for plan in plans(ops):
        place = {name: number for number, name in enumerate(plan.order)}
        for a, b in itertools.combinations(ops, 2):
            if place[a.name] > place[b.name]:
                made_by_a = a.creates | (a.writes - a.reads)
                made_by_b = b.creates | (b.writes - b.reads)
                assert not made_by_a & (b.reads | b.writes | b.drops)
                assert not (made_by_b | b.drops) & (a.reads | a.writes)
                assert not a.drops & made_by_b


@given(pipelines(most=5, fixed=False, columns=False, timed=True))
def test_if_time_goes_with_the_bytes_no_order_takes_less(ops: list[ProfiledOp]) -> None:
    plan = auto_order(ops, "safe", commutes=any_pair)
    best = min(total(ops, order) for order in itertools.permutations(op.name for op in ops))
    assert total(ops, plan.order) <= best * (1 + 1e-9) + 1e-12


def total(ops: list[ProfiledOp], order: tuple[str, ...]) -> float:
    """Return the seconds of an order, where time goes with the bytes."""
    by_name = {op.name: op for op in ops}
    measured_at, reached = {}, 1.0
    for op in ops:
        measured_at[op.name] = reached
        reached *= op.inflation / op.elements
    volume, count, seconds = 1.0, 1.0, 0.0
    for name in order:
        op = by_name[name]
        seconds += count * (op.seconds or 0.0) * volume / measured_at[name]
        volume *= op.inflation / op.elements
        count *= op.elements
    return seconds


@given(pipelines(columns=False))
def test_paper_mode_is_algorithm_2_where_no_column_is_known(ops: list[ProfiledOp]) -> None:
    expected: list[str] = []
    prefix: list[str] = []
    suffix: list[str] = []
    end: list[str] = []
    for op in ops:
        if op.keep_position:
            expected += [*prefix, *suffix, *end, op.name]
            prefix, suffix, end = [], [], []
        elif op.inflation > 1:
            suffix.append(op.name)
        elif op.inflation == 1:
            prefix.append(op.name)
        elif op.custom_dtype_cast:
            end.append(op.name)
        else:
            prefix.insert(0, op.name)
    assert list(auto_order(ops).order) == [*expected, *prefix, *suffix, *end]


@given(pipelines())
def test_moves_explain_the_order_with_as_few_neutral_ops_as_possible(ops: list[ProfiledOp]) -> None:
    names = [op.name for op in ops]
    weights = [100 if op.inflation == 1 else 1 for op in ops]
    for plan in plans(ops):
        moved = {move.name for move in plan.moves}
        for move in plan.moves:
            assert names[move.from_] == move.name == plan.order[move.to]
        new = [names.index(name) for name in plan.order]
        rest = [index for index in new if names[index] not in moved]
        assert rest == sorted(rest)
        assert sum(weights[index] for index in rest) == heaviest_rising(new, weights)


def heaviest_rising(numbers: list[int], weights: list[int]) -> int:
    best: list[int] = []
    for place, number in enumerate(numbers):
        best.append(weights[number] + max((best[i] for i in range(place) if numbers[i] < number), default=0))
    return max(best, default=0)


@given(pipelines())
def test_an_exchange_in_strict_mode_was_allowed(ops: list[ProfiledOp]) -> None:
    plan = auto_order(ops, "strict", commutes=first_of_even)
    place = {name: number for number, name in enumerate(plan.order)}
    for a, b in itertools.combinations(ops, 2):
        assert place[a.name] < place[b.name] or first_of_even((a.name, b.name))
