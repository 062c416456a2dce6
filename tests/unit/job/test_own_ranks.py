"""Workers make batches of ranks on their own nodes first."""

from __future__ import annotations

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.job.lease_rows import rows_of
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.row_order import is_in_turn
from pecan_ray.options import IterOptions, Order
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Source, Split, seeks
from pecan_ray.sampling.spans import Span
from pecan_ray.sources import Arrays, ByIndex, Files, ImageFolder, Items, Parquet, TextLines
from tests.ledger_check import check_ledger

SIZE = 4
NODES = ("east", "east", "west", "west")
"""Of four ranks."""


def ledger_of(**workers: str) -> Ledger:
    """Return a ledger of four ranks on two nodes, and workers on some."""
    ledger = Ledger(LedgerShape(in_row_order=True, seeks=True, world_size=4, batch_size=SIZE))
    for rank, node in enumerate(NODES):
        ledger.rank_nodes.put(rank, node)
    ledger.add_splits(0, [Split(0, elements=10), Split(1, elements=150)])
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
    ledger = ledger_of(a="east", b="west", remote="elsewhere")
    assert taken(ledger, "b") == [(8, 10), (10, 12)], "across two splits"
    assert taken(ledger, "a", 2 * SIZE) == [(0, 8)]
    assert taken(ledger, "b", 4 * SIZE) == [(12, 16), (24, 28)], "half of a window over the workers"
    assert taken(ledger, "remote") == [(16, 20)]
    assert taken(ledger, "a") == [(20, 24)]


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
    ledger = ledger_of(a="east", b="east")
    assert taken(ledger, "a", 2 * SIZE) == [(0, 8)] and taken(ledger, "b", 2 * SIZE) == [(8, 10), (10, 16)]
    scanning = Ledger(LedgerShape(in_row_order=True, world_size=4, batch_size=SIZE))
    for rank, node in enumerate(NODES):
        scanning.rank_nodes.put(rank, node)
    assert not scanning.rank_nodes.matter


@pytest.mark.parametrize("order", [None, "strict", "relaxed"])
def test_all_ranks_say_alike_whether_rows_are_made_in_turn(order: Order | None) -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)))
    for one in (pipe.batch(4), pipe.filter(lambda i: i > 3, on="i").batch(4), pipe.take(20).batch(4)):
        options = [IterOptions(rank=rank, world_size=3, order=order) for rank in range(3)]
        assert len({is_in_turn(each, plan_shape(one.plan)) for each in options}) == 1
