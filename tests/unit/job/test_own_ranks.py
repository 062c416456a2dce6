"""Workers make batches of ranks on their own nodes first, and leave no row waiting."""

from __future__ import annotations

import pytest

from pecan_ray.job.lease_rows import rows_of
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.own_ranks import OwnRanks, RowsToGive, RunBegin, run_begin
from pecan_ray.job.slow_head import SlowHead
from pecan_ray.job.suspicion import CRASHED
from pecan_ray.plan.splits import Source, Split, seeks
from pecan_ray.sampling.spans import Span
from pecan_ray.sources import Arrays, ByIndex, Files, ImageFolder, Items, Parquet, TextLines

SIZE = 4
NODES = ("east", "east", "west", "west")
"""Of four ranks."""


@pytest.mark.parametrize(
    ("passed", "fresh", "limit", "end", "open_before", "idle", "begins", "alone"),
    [
        ([], 0, 64, 64, 0, (), 0, True),
        ([], 8, 64, 64, 0, (), 16, True),
        ([(8, 16)], 32, 64, 64, 0, (), 32, True),
        ([(8, 16)], 32, 64, 64, 12, (), 8, False),
        ([(8, 16)], 48, 64, 64, 0, (), 8, False),
        ([(40, 48)], 56, 56, 128, 0, (), None, None),
        ([(40, 48)], 64, 64, 64, 0, (2, 3), None, None),
        ([(40, 48)], 64, 64, 64, 0, (), 40, False),
        ([(8, 16), (16, 20)], 32, 32, 64, 0, (), 16, True),
        ([], 64, 64, 64, 0, (), None, None),
    ],
    ids=[
        "its own row",
        "behind rows of others",
        "behind rows that were passed over before",
        "rows that a lost worker held are for all",
        "others are slower",
        "no room for its own rows, and others are not slow",
        "none of its own left, and a worker of the others stands by",
        "none of its own left",
        "its own rows that came back",
        "nothing is left",
    ],
)
def test_what_a_worker_is_given_next(
    passed: list[Span],
    fresh: int,
    limit: int,
    end: int,
    open_before: int,
    idle: tuple[int, ...],
    begins: int | None,
    alone: bool | None,
) -> None:
    own = OwnRanks(frozenset({0, 1}), frozenset(idle), 4, SIZE, ahead=32)
    rows = RowsToGive(passed, fresh, limit, end, open_before)
    assert run_begin(rows, own) == (None if begins is None else RunBegin(begins, own if alone else None))


def ledger_of(elements: int, **workers: str) -> Ledger:
    """Return a ledger of four ranks on two nodes, and workers on some."""
    ledger = Ledger(LedgerShape(in_row_order=True, seeks=True, world_size=4, batch_size=SIZE))
    for rank, node in enumerate(NODES):
        ledger.rank_nodes.put(rank, node)
    ledger.add_splits(0, [Split(0, elements=10), Split(1, elements=elements - 10)])
    ledger.end_listing(0)
    for worker, node in workers.items():
        ledger.join(worker, node)
    return ledger


def taken(ledger: Ledger, worker: str, most: int = SIZE) -> list[Span]:
    """Let a worker begin, if it does not work, and take a run; return its rows."""
    if not ledger.workers[worker].working and ledger.next_assignment(worker) == "wait":
        return []
    run = ledger.take_run(worker, most) or ()
    check_ledger(ledger)
    return [rows_of(lease) for lease in run]


def test_each_node_makes_the_batches_of_its_ranks_and_a_remote_worker_takes_what_is_next() -> None:
    ledger = ledger_of(160, a="east", b="west", remote="elsewhere")
    assert taken(ledger, "b") == [(8, 10), (10, 12)], "across two splits"
    assert taken(ledger, "a", 2 * SIZE) == [(0, 8)]
    assert taken(ledger, "b", 4 * SIZE) == [(12, 16), (24, 28)], "half of a window over the workers"
    assert taken(ledger, "remote") == [(16, 20)]
    assert taken(ledger, "a") == [(20, 24)]


def test_a_node_whose_workers_are_slower_is_helped_when_the_others_are_half_of_a_window_ahead() -> None:
    ledger = ledger_of(320, a="east", b="west")
    assert taken(ledger, "b") == [(8, 10), (10, 12)]
    rows = [first for _ in range(5) for first, _ in taken(ledger, "a", SIZE)]
    # The window is of four batches for each worker.
    assert rows == [0, 4, 16, 20, 12]


def test_near_the_end_a_worker_helps_others_unless_they_stand_by() -> None:
    ledger = ledger_of(32, a="east", b="west")
    assert [taken(ledger, "a") for _ in range(4)] == [[(0, 4)], [(4, 8)], [(16, 20)], [(20, 24)]]
    assert taken(ledger, "a") == [], "b stands by"
    assert taken(ledger, "b") == [(8, 10), (10, 12)]
    assert taken(ledger, "a") == [(12, 16)], "b is at work"


def test_rows_of_a_lost_worker_and_rows_that_nobody_asks_for_are_for_all() -> None:
    ledger, head = ledger_of(320, a="east", b="west", c="west"), SlowHead()
    assert taken(ledger, "b") == [(8, 10), (10, 12)] and taken(ledger, "a") == [(0, 4)]
    ledger.lost("b", died=CRASHED)
    for rank in range(4):
        ledger.settled(rank, "b")
    assert taken(ledger, "a", 2 * SIZE) == [(4, 8), (8, 10), (10, 12)]
    assert taken(ledger, "a") == [(16, 20)], "the batch before it is for a worker of the other node"
    head.look(ledger, 0, 0.0)
    for rank, spans in enumerate(({(0, 0, 0): [(0, 4 << 32)]}, {(0, 0, 0): [(4 << 32, 8 << 32)]})):
        ledger.ack(rank, "a", 0, spans)
    ledger.ack(2, "a", 0, {(0, 0, 0): [(8 << 32, 1 << 62)], (0, 0, 1): [(0, 2 << 32)]})
    head.look(ledger, 0, 1.0)
    assert head.look(ledger, 0, 1e9) == "", "nobody has the next batch"
    assert taken(ledger, "a") == [(12, 16)]


@pytest.mark.parametrize(
    ("source", "does"),
    [
        (Arrays(x=[1, 2]), True),
        (Items([1, 2]), True),
        (ByIndex(Arrays(x=[1, 2]), shuffle=True), True),
        (ImageFolder("images"), True),
        (ImageFolder("s3://bucket/images"), False),
        (Files("here/*.bin"), True),
        (Files("s3://bucket/*.bin"), False),
        (Parquet("rows.parquet"), False),
        (TextLines("lines.txt"), False),
    ],
)
def test_which_sources_read_an_element_alone(source: Source, does: bool) -> None:
    assert seeks(source) is does


def test_ranks_on_one_node_and_sources_that_do_not_seek_are_served_in_the_order_of_rows() -> None:
    ledger = ledger_of(160, a="east", b="east")
    assert taken(ledger, "a", 2 * SIZE) == [(0, 8)] and taken(ledger, "b", 2 * SIZE) == [(8, 10), (10, 16)]
    scanning = Ledger(LedgerShape(in_row_order=True, world_size=4, batch_size=SIZE))
    for rank, node in enumerate(NODES):
        scanning.rank_nodes.put(rank, node)
    assert not scanning.rank_nodes.matter
