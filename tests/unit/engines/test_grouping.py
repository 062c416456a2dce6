"""Batches of elements with equal keys, in the python engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Produced
from pecan_ray.errors import BatchShapeError, ColumnError, OpError, OutputTypeError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.grouping import Tail
from pecan_ray.plan.splits import Lease
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, numbers, run_engine, whole_leases


def keyed(rows: int = 20, key: Any = "g", size: Any = 4, **options: Any) -> PecanPipeline:
    pipe = numbers(rows, 300).map(lambda e: {"i": e["i"], "g": e["i"] % 3}, name="with_key")
    return pipe.group_by(key, size, **options)


def rows_of(produced: list[Produced]) -> list[list[int]]:
    return [batch.columns["i"].tolist() for batch in produced if batch.rows]


FULL = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.parametrize(
    ("tail", "last"),
    [
        ("keep", [[12, 15, 18], [13, 16, 19], [14, 17]]),
        ("fill", [[12, 15, 18, 12], [13, 16, 19, 13], [14, 17, 14, 17]]),
        ("merge", [[12, 15, 18, 13], [16, 19, 14, 17]]),
        ("drop", []),
    ],
)
def test_batches_hold_one_key_and_what_is_left_becomes_what_tail_says(tail: Tail, last: list[list[int]]) -> None:
    pipe = keyed(tail=tail)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, order="strict")
    assert rows_of([one for one in produced if not one.partial]) == FULL
    assert delivered(produced) == leases.target(), "elements that are repeated are delivered once"
    batches = pipe.iter_batches(debug=True)
    assert [batch["i"].tolist() for batch in batches] == [*FULL, *last]
    report = batches.report()
    assert (report.elements, report.left_out_elements) == ((12, 8) if tail == "drop" else (20, 0))
    assert [row["i"] for row in pipe.unbatch().iter_batches(debug=True)] == [i for rows in [*FULL, *last] for i in rows]


def test_keys_and_sizes_are_values_or_functions_and_lists_go_to_collate() -> None:
    kinds: list[Any] = [lambda e: "ab"[e["i"] % 2], lambda e: (e["i"] % 2, None), lambda e: np.array(e["i"] % 2)]
    for key in kinds:
        assert rows_of(run_engine(keyed(8, key, 2), order="strict")) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    by_key = keyed(8, lambda e: e["i"] % 2, lambda key: 3 if key else 1)
    assert rows_of(run_engine(by_key, order="strict")) == [[0], [2], [4], [1, 3, 5], [6], [7]]
    lists = keyed(7, tail="fill", collate=lambda rows: {"n": len(rows), "each": [row["i"] for row in rows]})
    assert [batch["n"] for batch in lists.iter_batches(debug=True)] == [4, 4, 4]


@pytest.mark.parametrize(
    ("pipe", "error", "said"),
    [
        (lambda: keyed(key="h"), ColumnError, r"there is no column 'h' in element 0 .*; there are \['g', 'i'\]"),
        (lambda: keyed(key=lambda e: 1 // int(e["i"])), OpError, "group_by failed on element 0 .*: ZeroDivisionError"),
        (lambda: keyed(key=lambda e: [1]), OutputTypeError, r"key of element 0 .* is \[1\], but it must be one number"),
        (lambda: keyed(key=lambda e: np.nan), OutputTypeError, "key of element 0 .* is nan, but"),
        (lambda: keyed(key=lambda e: (1, np.nan)), OutputTypeError, "key of element 0 .* is .*nan.*, but"),
        (lambda: keyed(size=lambda key: 0), OutputTypeError, "size returned 0 for the key 0: it must return a whole"),
        (
            lambda: numbers(2, 9).map(lambda e: {"x": np.zeros(e["i"])}).group_by(lambda e: 0, 2),
            BatchShapeError,
            "group_by: column 'x'",
        ),
    ],
)
def test_what_cannot_be_grouped_is_refused_by_name(pipe: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run_engine(pipe())


def test_a_key_that_fails_follows_the_on_error_policy_and_the_tensorflow_engine_has_no_groups() -> None:
    produced = run_engine(keyed(4, lambda e: 1 // int(e["i"])), on_error="skip", order="strict")
    assert rows_of(produced) == [[1], [2, 3]] and [bad.op for one in produced for bad in one.bad] == ["group_by"]
    with pytest.raises(PlanError, match='the tensorflow engine has no group_by: use engine="python"'):
        numbers(engine="tensorflow").group_by("i", 2)


@pytest.mark.parametrize("tail", ["keep", "fill", "merge", "drop"])
def test_the_end_of_an_epoch_gives_each_rank_equally_many_batches(tail: Tail) -> None:
    for rows, ranks in ((53, 2), (53, 3), (48, 5), (4, 3), (2, 3)):
        pipe = keyed(rows, tail=tail)
        leases = [Lease(0, one.split, one.spans, passed=True) for one in whole_leases(tuple(pipe.plan.sources()))]
        produced = run_engine(pipe, leases, tail_ranks=ranks, order="strict")
        used = [one for one in produced if one.rank is not None]
        assert [one.rank for one in used] == list(range(ranks)) * (len(used) // ranks)
        assert all(one.partial for one in produced if one.rank is None and one.rows), "what no rank gets"
        left_out = rows - len(set(column(used, "i")))
        assert left_out < (4 * ranks + 9 if tail == "drop" else ranks)
        assert tail == "fill" or max(Counter(column(used, "i")).values(), default=1) == 1
        assert tail not in ("fill", "drop") or set(map(len, rows_of(used))) <= {4}
        assert sum(one.rows for one in used) == rows - left_out, "rows that repeat others count as no elements"
    ordinary = run_engine(keyed(53, tail=tail), tail_ranks=2, order="strict")
    assert {one.rank for one in ordinary if not one.partial} == {None}, "before that whoever has room gets a batch"
