"""What holds for every pipeline, in every mode."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.reorder import Mode, OrderPlan, ProfiledOp, auto_order
from tests.unit.commuting import any_pair
from tests.unit.reorder.test_reorder_decided import operators

MODES: tuple[Mode, ...] = ("pecan", "safe", "strict", "off")
PIPELINES = st.integers(0, 1 << 32).map(lambda seed: operators(random.Random(seed)))


def without_columns(ops: list[ProfiledOp], **facts: Any) -> list[ProfiledOp]:
    none: frozenset[str] = frozenset()
    return [replace(op, reads=none, writes=none, creates=none, drops=none, **facts) for op in ops]


def of_even_distance(pair: tuple[str, str]) -> bool:
    return (int(pair[0][2:]) + int(pair[1][2:])) % 2 == 0


def plans(ops: list[ProfiledOp]) -> Iterable[OrderPlan]:
    for mode in MODES:
        yield auto_order(ops, mode, commutes=of_even_distance)


@given(PIPELINES)
def test_the_result_is_a_permutation_in_which_fixed_ops_and_sections_keep_their_places(ops: list[ProfiledOp]) -> None:
    section_at = list(itertools.accumulate(int(op.keep_position) for op in ops))
    section_of = {op.name: section for op, section in zip(ops, section_at, strict=True)}
    for plan in plans(ops):
        assert sorted(plan.order) == sorted(op.name for op in ops)
        assert [section_of[name] for name in plan.order] == section_at
        for op, name in zip(ops, plan.order, strict=True):
            assert not op.keep_position or name == op.name


@given(PIPELINES)
def test_no_op_passes_the_one_that_makes_or_ends_its_columns_nor_one_that_it_may_not(ops: list[ProfiledOp]) -> None:
    for plan in plans(ops):
        place = {name: number for number, name in enumerate(plan.order)}
        for a, b in itertools.combinations(ops, 2):
            if place[a.name] > place[b.name]:
                assert plan.mode == "pecan" or of_even_distance((a.name, b.name))
                made_by_a = a.creates | (a.writes - a.reads)
                made_by_b = b.creates | (b.writes - b.reads)
                assert not made_by_a & (b.reads | b.writes | b.drops)
                assert not (made_by_b | b.drops) & (a.reads | a.writes)
                assert not a.drops & made_by_b


@given(PIPELINES)
def test_if_time_goes_with_the_bytes_no_order_takes_less(ops: list[ProfiledOp]) -> None:
    ops = without_columns(ops[:5], keep_position=False)
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


@given(PIPELINES)
def test_paper_mode_is_algorithm_2_where_no_column_is_known(ops: list[ProfiledOp]) -> None:
    ops = without_columns(ops)
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
