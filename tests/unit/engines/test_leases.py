"""Leases, plans that begin behind their first outputs, rounds, and zips in step: nothing is lost or repeated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from pecan_ray.engines.contract import BadElement, Leases, Produced
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.reading import read_lease
from pecan_ray.engines.slots import HeapSlot, HeapSlots
from pecan_ray.errors import PecanError, PlanError
from pecan_ray.job.leftovers import Leftovers
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.behind import plan_behind
from pecan_ray.plan.in_step import read_in_step
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Element, Lease, Source, Split
from pecan_ray.sampling.spans import Span
from pecan_ray.sources import Arrays, Items, TextLines
from pecan_ray.transport.owned_slots import OwnedSlots
from pecan_ray.transport.ring import RingSlots
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import (
    ListedLeases,
    Numbered,
    built,
    column,
    delivered,
    numbers,
    run_engine,
    running,
    sources_of,
    whole_leases,
)

KEY = (0, 0, 0)


def elements(first: int, stop: int) -> Span:
    return first << OUTPUT_BITS, stop << OUTPUT_BITS


def given(*spans: Span, length: int | None = None, mentioned: Sequence[Span] = ()) -> LeaseTracker:
    accounted = LeaseTracker(ListedLeases([Lease(0, Split(0, elements=length), spans=spans)]))
    assert accounted.take() is not None and accounted.take() is None
    accounted.mark_processed({KEY: list(mentioned)})
    return accounted


def test_positions_that_an_engine_says_nothing_of_are_given_back_or_lost_by_an_error() -> None:
    assert given((0, END), mentioned=[elements(0, 3)]).unresolved_spans() == {KEY: [(3 << OUTPUT_BITS, END)]}
    pieces = elements(2, 4), elements(8, 12)
    assert given(*pieces, mentioned=[elements(2, 3)]).unresolved_spans() == {KEY: [elements(3, 4), elements(8, 12)]}
    assert given(elements(64, 128)).unresolved_spans() == {KEY: [elements(64, 128)]}
    assert given(elements(0, 3), length=3, mentioned=[elements(1, 3), elements(0, 1)]).unresolved_spans() == {}
    whole = given((0, END), mentioned=[elements(0, 3)])
    whole.ended(Lease(0, Split(0)), 3)
    assert whole.unresolved_spans() == {}, "all was mentioned"
    for length, mentioned, lost in ((None, [elements(0, 1), elements(2, 3)], 1), (3, [elements(0, 2)], 2)):
        with pytest.raises(PecanError, match=f"neither delivered nor left out element {lost} of split 0"):
            given((0, END), length=length, mentioned=mentioned).unresolved_spans()


class Given:
    """Leases of a worker among others: what it cannot open is given to these."""

    def __init__(self, others: bool) -> None:
        self.others = others
        self.elsewhere_told: list[BadElement] = []
        self.lengths: list[int] = []

    def take(self, branch: int = 0) -> Lease | None:
        return None

    def ended(self, lease: Lease, elements: int) -> None:
        self.lengths.append(elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        self.elsewhere_told.append(bad)
        return self.others


WRAPPED: dict[str, Callable[[Leases, Source], Leases]] = {
    "accounted": lambda leases, source: LeaseTracker(leases),
    "behind none": lambda leases, source: LeasesBehind(leases, [source], [0]),
    "as given": lambda leases, source: leases,
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("content", [None, b"good\n", b"\xff\n"])
def test_a_reader_leaves_to_others_what_it_cannot_open(
    tmp_path: Path, content: bytes | None, others: bool, wrapped: str
) -> None:
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    given, source = Given(others), TextLines(str(path))
    leases: Any = WRAPPED[wrapped](given, source)
    read = read_lease(source, Lease(0, Split(0, str(path), 0, 5)), leases, SkippedPositions(), "skip")
    assert [value["text"] for _, value, _ in read] == (["good"] if content == b"good\n" else [])
    opened = content is not None  # a line that cannot be read is an element, too
    assert len(given.elsewhere_told) == (not opened)
    assert given.lengths == ([] if not opened and others else [int(opened)])
    if wrapped == "accounted" and others:
        assert leases.unresolved_spans() == {}, "nothing is missing of what is left to others"


def twenty() -> PecanPipeline:
    return numbers(20, 20)


@pytest.mark.parametrize("pipe", [twenty(), twenty().shuffle(5), twenty().flat_map(lambda e: [e, {"i": e["i"] + 100}])])
def test_what_a_worker_gives_back_passes_the_filter_that_it_was_behind(pipe: PecanPipeline) -> None:
    seen: set[int] = set()

    def is_fresh(element: Element) -> bool:
        before = len(seen)
        seen.add(int(element["i"]) // 2)
        return len(seen) > before

    pipe = pipe.filter(is_fresh).batch(7)
    delivered: list[int] = []
    rest = Leftovers(1, 7, only_full=False)
    (lease,) = whole_leases(list(pipe.plan.sources()))
    with running(pipe, ListedLeases([lease])) as (engine, batches):
        for produced in batches:
            if not produced.partial:
                delivered += [int(i) for i in produced.columns.get("i", ())]
            else:
                rest.add(lease, produced.spans[lease.key])
        assert len(delivered) in (7, 14), "and something is left"
        rest.distribute()
        (group,) = rest.groups
        assert all(one.passed for one in group.leases)
        delivered += column(engine.batches(ListedLeases(group.leases)))
    assert sorted(i // 2 for i in delivered) == sorted(seen)


LEFT: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "threads": lambda pipe: pipe.map(lambda i: i, on="i").filter(lambda i: i % 3 != 0, on="i").batch(4),
    "one by one": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").padded_batch(4),
    "one sequence": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").batch(4).take(1000),
    "columns": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").batch(4).prefetch(2),
}


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
@pytest.mark.parametrize("kind", LEFT)
def test_an_engine_runs_a_whole_epoch_behind_one_that_was_left(kind: str, engine: EngineName) -> None:
    pipe = LEFT[kind](PecanPipeline(Arrays(i=np.arange(900)), engine=engine).shuffle(50))
    ring = RingSlots(1 << 20)
    with built(pipe, threads=2, slots=OwnedSlots(ring)) as made:
        for epoch in range(3):
            leases = LeaseTracker(AllLeases(sources_of(pipe), epoch, 1))
            stretch = made.batches(leases)
            assert all(next(stretch).epoch == epoch for _ in range(3))
            stretch.close()
            leases.close()
        until(lambda: ring._slots_in_flight <= 1, "slots of stretches that were left stay in flight")
        seen = list[int]()
        for one in made.batches(AllLeases(sources_of(pipe), 3, 1)):
            assert one.epoch == 3
            seen += one.columns["i"].tolist() if one.rows else []
        assert sorted(seen) == [i for i in range(900) if i % 3]
    ring.close()


LENGTHS = (5, 0, 7, 1, 12, 3, 3, 9)


class Lengths(Numbered):
    """Numbers in splits of uneven lengths, that notes which of them are read."""

    def __init__(self, column: str = "i", known: bool = True) -> None:
        super().__init__(*LENGTHS, make=self._note, known=known)
        self.column, self.read_at = column, list[int]()

    def _note(self, number: int) -> Element:
        self.read_at.append(number)
        return {self.column: number}


def with_draw(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**row, "with_draw": int(rng.integers(1 << 30))}


of = functools.partial(PecanPipeline, name="behind")
PLANS: dict[str, Callable[[Lengths, Lengths], PecanPipeline]] = {
    "take": lambda a, b: of(a).map(with_draw).take(23).batch(4),
    "skip, take and skip": lambda a, b: of(a).skip(3).take(30).skip(4).map(with_draw).prefetch(2),
    "zip": lambda a, b: of(a).skip(2).map(with_draw).zip(of(b).take(31)).batch(4),
    "a zip of batches": lambda a, b: of(a).batch(2).zip(of(b).batch(2).skip(1)).map(lambda x: x).batch(2),
    "a remainder that is dropped": lambda a, b: of(a).take(22).map(with_draw).batch(4, drop_remainder=True),
    "skip": lambda a, b: of(a).skip(6).map(with_draw).batch(4),
    "batches that are taken": lambda a, b: of(a).map(with_draw).batch(3).take(5).map(lambda x: x),
}


def outputs_of(plan: Plan, leases: Leases | None = None) -> list[Any]:
    with running(plan, leases, seed=7, threads=2, order="strict") as (_, batches):
        produced = [(one.rows, one.columns) for one in batches if one.rows]
    return [(rows, {name: np.asarray(c).tolist() for name, c in columns.items()}) for rows, columns in produced]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("plan", PLANS)
def test_the_rest_of_a_plan_is_what_comes_behind_its_first_outputs_wherever_it_begins(plan: str, known: bool) -> None:
    of_all = PLANS[plan](Lengths(), Lengths("j")).plan
    whole = outputs_of(of_all)
    assert len(whole) > 4
    for outputs in range(1, len(whole) + 1):
        sources = Lengths(known=known), Lengths("j", known=known)
        pipe = PLANS[plan](*sources)
        left = plan_behind(pipe.plan, outputs)
        assert left is not None and plan_shape(pipe.plan).counts and plan_shape(left.plan).serial
        behind = LeasesBehind(ListedLeases(whole_leases(sources)), sources, left.elements)
        assert outputs_of(left.plan, behind) == whole[outputs:]
        if known:
            for source, before in zip(sources, left.elements, strict=False):
                assert min(source.read_at, default=before) >= before, "an element was read that lies before"
                assert sorted(set(source.read_at)) == sorted(source.read_at), "an element was read twice"


def of_lengths(*lengths: int, **options: Any) -> PecanPipeline:
    rows = [{"i": number, "x": np.ones(length)} for number, length in enumerate(lengths)]
    return PecanPipeline(Items(rows)).bucket_by_length([10, 20], sizes=[4, 2, 1], length="x", **options)


def rows(produced: Produced) -> list[int]:
    return sorted(int(number) for number in produced.columns["i"])


def test_what_fills_no_round_comes_last_as_smaller_batches_for_all_ranks_or_is_dropped() -> None:
    produced = run_engine(of_lengths(5, 6, 7, 12, 25), ranks=2)
    wanted = [(0, True, [0, 2]), (1, True, [1]), (0, True, [3]), (1, True, [4])]
    assert [(one.rank, one.partial, rows(one)) for one in produced] == wanted
    assert produced[2].columns["x"].shape == (1, 12) and produced[3].columns["x"].shape == (1, 25)
    (rest,) = run_engine(of_lengths(5, 25), ranks=3)
    assert (rest.rank, rest.partial, rest.rows) == (None, True, 2), "fewer than the ranks are in no round"
    dropped = run_engine(of_lengths(*[5] * 11, 12, drop_remainder=True), ranks=2)
    assert [(one.rank, one.rows) for one in dropped] == [(0, 4), (1, 4), (None, 3), (None, 1)]


ROUNDS: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "a column": lambda pipe: pipe.bucket_by_length([3, 6], sizes=[4, 3, 2], length="x", padding={"x": -1.0}),
    "a function": lambda pipe: pipe.bucket_by_length([30, 60], sizes=[4, 3, 2], length=lambda row: row["i"]),
    "behind a filter": lambda pipe: pipe.filter(lambda i: i % 3 != 1, on="i").bucket_by_length(
        [3], sizes=[3, 2], length="x", drop_remainder=True
    ),
    "repeated": lambda pipe: pipe.bucket_by_length([4], sizes=[3, 2], length="x").prefetch(1).repeat(2),
}


@pytest.mark.parametrize("shape", ROUNDS)
def test_both_engines_make_the_same_rounds(shape: str) -> None:
    found = []
    for engine in get_args(EngineName):
        elements = [{"i": i, "x": np.full(1 + i * 7 % 8, i, np.float32), "t": b"t%d" % i} for i in range(90)]
        pipe = ROUNDS[shape](PecanPipeline(Items(elements, split_rows=20), engine=engine, seed=3))
        slots = CountingSlots()
        made = run_engine(pipe, slots=slots, ranks=3, order="strict")
        assert slots.given <= len(made), "elements take no memory that is meant for batches"
        # What was left out may be told in a piece of its own, which is for no rank.
        ranks = [one.rank for one in made if one.rank is not None]
        assert ranks == [0, 1, 2] * (len(ranks) // 3)
        found.append((delivered(made), [(one.rank, one.partial, said(one)) for one in made if one.rows]))
    assert found[0] == found[1]


class CountingSlots(HeapSlots):
    given = 0

    def acquire(self, nbytes: int) -> HeapSlot:
        self.given += 1
        return super().acquire(nbytes)


def said(produced: Produced) -> dict[str, Any]:
    return {name: (column.dtype, column.tolist()) for name, column in sorted(produced.columns.items())}


def test_elements_that_fail_in_a_graph_are_in_no_round_and_ragged_ones_are_refused() -> None:
    def fails(value: Any) -> Any:
        import tensorflow as tf

        return tf.debugging.check_numerics(tf.where(value["i"] % 9 == 4, np.nan, value["x"]), "bad")

    start = numbers(20, 7, engine="tensorflow").map(lambda i: {"i": i["i"], "x": np.ones(3)})
    pipe = start.map(lambda value: {"i": value["i"], "x": fails(value)}).bucket_by_length([5], sizes=[3, 2], length="x")
    made = run_engine(pipe, ranks=2, on_error="skip")
    assert sorted(i for one in made if one.rows for i in rows(one)) == [i for i in range(20) if i % 9 != 4]
    assert sorted(bad.where for one in made for bad in one.bad) == ["element 4 of split 0", "element 6 of split 1"]

    def ragged(value: Any) -> Any:
        import tensorflow as tf

        return {"x": value["x"], "parts": tf.RaggedTensor.from_row_lengths(value["x"], [2, 1])}

    parts = start.map(ragged).bucket_by_length([5], sizes=[3, 2], length="x")
    with pytest.raises(PecanError, match="bucket_by_length: column 'parts' is a ragged or sparse tensor"):
        run_engine(parts, ranks=2)


def bucketed(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.bucket_by_length([5], sizes=[2, 2], length=lambda row: int(row["i"]))


NO_ROUNDS: list[tuple[Callable[[], PecanPipeline], dict[str, Any], str]] = [
    (lambda: numbers(10).batch(2), {}, r"ends with batch: let it end with bucket_by_length"),
    (lambda: numbers(10), {}, r"makes no batches: let it end with bucket_by_length"),
    (
        lambda: bucketed(numbers(10).batch(2, drop_remainder=False).map(dict).unbatch()),
        {},
        r"as a whole, since behind unbatch elements are not known any more",
    ),
    (lambda: bucketed(numbers(10).take(5)), {}, r"run by one worker as a whole \(take"),
    (lambda: bucketed(numbers(10)).filter(lambda batch: True, name="some"), {}, r"some: behind bucket_by_length"),
    (lambda: bucketed(numbers(10)).map(dict, name="moved"), {"on_error": "skip"}, r"moved: with on_error='skip'"),
    (
        lambda: bucketed(numbers(10, engine="tensorflow")).map(dict, name="moved"),
        {},
        'moved: engine=.*use engine="python"',
    ),
    (lambda: bucketed(numbers(10)), {"order": "strict"}, r"does not go with order='strict'"),
    (lambda: bucketed(numbers(10)), {"sharding": "off"}, r"does not go with sharding='off'"),
    (lambda: bucketed(numbers(10)), {"visitation": "zero_or_more"}, r"does not go with visitation='zero_or_more'"),
    (lambda: bucketed(numbers(10)), {"share": True, "world_size": 1, "max_lag": 3}, r"does not go with share=True"),
    (lambda: bucketed(numbers(10)), {"coordinated": 1}, r"coordinated must be True or False"),
]


def test_what_has_no_rounds_is_refused_when_the_job_is_begun() -> None:
    for build, options, said in NO_ROUNDS:
        with pytest.raises(PlanError, match=said):
            build().iter_batches(**{"rank": 0, "world_size": 2, "coordinated": True, **options})


def with_own_draw(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    (name,) = element
    return {name: element[name], f"draw_{name}": int(rng.integers(1000))}


def drawn(epoch: int, seed: int) -> Any:
    return np.random.default_rng((seed, epoch)).integers(0, 9, 60)


def pairs() -> PecanPipeline:
    labelled = PecanPipeline(Arrays(j=np.arange(9)), sampler=drawn).map(with_own_draw).prefetch(2)
    return numbers(45, 10).map(with_own_draw).zip(labelled, numbers(50, 7, column="k"))


def of_first_source(pipe: PecanPipeline) -> list[Lease]:
    return [lease for lease in whole_leases(tuple(pipe.plan.sources())) if lease.branch == 0]


def rows_of_pairs(produced: Sequence[Produced]) -> list[tuple[Any, ...]]:
    names = ("i", "j", "k", "draw_i", "draw_j")
    return list(zip(*(column(produced, name) for name in names), strict=True))


def test_pairs_and_draws_are_those_of_one_worker_and_positions_those_of_the_first_source() -> None:
    pipe = pairs().batch(4)
    whole = rows_of_pairs(run_engine(pipe))
    plan = read_in_step(pipe.plan)
    leases = ListedLeases(of_first_source(pipe))
    produced = run_engine(plan, leases, order="strict")
    assert rows_of_pairs(produced) == whole and len(whole) == 45
    assert delivered(produced) == leases.target() and {key[0] for key in delivered(produced)} == {0}
    first, second, *others = of_first_source(pipe)
    some = [(0, 3 << OUTPUT_BITS), (5 << OUTPUT_BITS, END)]
    parts = [*others[::-1], Lease(0, second.split, tuple(some)), first]
    kept = [row for row in whole if row[0] not in (13, 14)]
    assert sorted(rows_of_pairs(run_engine(plan, parts))) == kept
