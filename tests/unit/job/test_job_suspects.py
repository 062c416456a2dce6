"""Elements that kill workers: found with a few losses, left out or raised, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job.fatal_elements import PIECES, split_into_parts
from pecan_ray.job.suspicion import OP
from pecan_ray.options import OnError
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Origin, Split
from pecan_ray.sampling.spans import Spans
from tests.protocol import Scenario
from tests.unit.job.job_histories import played, split_of

SPLITS = (split_of(300), split_of(300, 177), split_of(300))
ONE = Scenario(sources=(SPLITS,), batch_size=8, element_s=0.001, window=4)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("workers", [1, 3])
def test_a_deadly_element_costs_a_few_workers_and_nothing_else(seed: int, workers: int) -> None:
    world = played(replace(ONE, seed=seed, local=workers))
    state = world.job.state
    assert state.error is None and state.bad.count == 1
    assert world.deaths <= 6
    told = [event.text for event in state.told if event.kind == "bad"]
    assert len(told) == 1 and told[0].startswith("element 177 of split 1 is left out")


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_deadly_element_is_kept_once_by_one_trainer(ranks: int) -> None:
    world = played(replace(ONE, on_error="quarantine", ranks=ranks, epochs=2, local=2))
    kept = [one for trainer in world.trainers for one in trainer.quarantined]
    assert [one.origin for one in kept] == [Origin(epoch, 0, 0, 1, 177) for epoch in range(2)]
    assert {(one.op, one.where) for one in kept} == {(OP, "element 177 of split 1")}


def test_a_deadly_element_is_raised_by_name() -> None:
    error = played(replace(ONE, on_error="raise")).job.state.error
    assert error is not None and error.args[0].startswith("element 177 of split 1 cannot be processed")


def test_what_is_known_to_kill_is_left_out_of_the_epochs_and_passes_to_come() -> None:
    world = played(replace(ONE, epochs=3))
    assert world.deaths <= 6 and world.job.state.bad.count == 3
    world = played(replace(ONE, repetitions=2))
    assert world.deaths <= 9 and world.job.state.bad.count == 2


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("splits", "ranks", "workers"), [((100,) * 3, 1, 2), ((300,), 1, 5), ((7,) * 30, 3, 1)])
def test_processes_that_die_again_and_again_and_get_on_are_no_reason_to_end(
    splits: tuple[int, ...], ranks: int, workers: int, on_error: OnError
) -> None:
    source = tuple(map(split_of, splits))
    leaky = replace(ONE, sources=(source,), leaks_after=25, batch_size=10, on_error=on_error, window=2)
    world = played(replace(leaky, local=workers, ranks=ranks))
    assert world.job.state.bad.count == 0 and world.deaths > 5


@pytest.mark.parametrize("elements", [None, 0, 1, 5, 1000])
@pytest.mark.parametrize(
    "spans", [((0, END),), ((3 << OUTPUT_BITS, 9 << OUTPUT_BITS), (20 << OUTPUT_BITS, END)), ((5, 9),)]
)
def test_pieces_are_a_whole_lease_and_become_single_elements(
    elements: int | None, spans: tuple[tuple[int, int], ...]
) -> None:
    lease = Lease(0, Split(0, elements=elements), spans)
    depth, leases = 0, [lease]
    while len(pieces := split_into_parts(leases)) > 1:
        assert len(pieces) <= 2 * PIECES
        together = Spans(span for bundle in pieces for one in bundle for span in one.spans)
        assert together == Spans(span for one in leases for span in one.spans)
        leases, depth = list(pieces[len(pieces) // 2]), depth + 1
    assert depth <= 6
