"""The control plane of a job in its simulation: every promise is kept, and a bug that is planted is found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job.delivery_log import DeliveryLog
from pecan_ray.job.messages import AskLeases
from pecan_ray.job.rounds import Rounds
from pecan_ray.job.state import JobState
from pecan_ray.job.trainer import TrainerState
from tests.long_form import some_later
from tests.protocol.__main__ import main
from tests.protocol.campaign import play_seeds
from tests.protocol.draw import draw
from tests.protocol.going_on import play_in_pieces
from tests.protocol.scenario import Fault, Scenario, SplitModel
from tests.protocol.world import play
from tests.unit.job.job_histories import REPEATS

LOT, CUT_LOT = 50, 100
"""Histories of one test: few enough that the check by mutations asks it."""
FEW = ((SplitModel((1,) * 5), SplitModel((1,))),)


def cut_off(seeds: Iterable[int], coordinated: bool = False) -> Iterator[str]:
    """What failed of histories that are cut off and gone on with from their states; of those with rounds alone."""
    outcomes = (play_in_pieces(seed) for seed in seeds if not coordinated or draw(seed).coordinated)
    return (outcome.failure for outcome in outcomes if outcome is not None)


def failed(seeds: Iterable[int]) -> Iterator[str]:
    """What failed of histories."""
    return (play(draw(seed)).failure for seed in seeds)


def in_chunks(seeds: Iterable[int]) -> Iterator[str]:
    """What failed of histories in order whose engines keep what they have read, and end no run by themselves."""
    drawn = (draw(seed) for seed in seeds)
    alone = (one for one in drawn if one.numbered and one.ranks == 1 and one.plain)
    return (play(replace(one, joined=True, ends_runs=False, window=4)).failure for one in alone)


@pytest.mark.parametrize("first", some_later(range(50, 2000, LOT), *range(150, 2000, LOT)))
def test_every_promise_is_kept_in_histories_drawn_at_random(first: int) -> None:
    summary = play_seeds(range(first, first + LOT))
    assert summary.failures == {} and summary.batches > LOT


@pytest.mark.slow  # in short `test_outcomes` plays 200 others
@pytest.mark.parametrize("first", range(200, 1200, CUT_LOT))
def test_whatever_is_cut_off_goes_on_with_what_was_not_yielded(first: int) -> None:
    summary = play_seeds(range(first, first + CUT_LOT), in_pieces=True)
    assert summary.failures == {} and summary.histories > CUT_LOT // 12


@pytest.mark.parametrize("first", some_later(range(0, 3200, 400), *range(400, 3200, 400)))
def test_rows_come_in_order_where_that_was_drawn_also_behind_a_state(first: int) -> None:
    """Of all histories one in thirteen."""
    seeds = [seed for seed in range(first, first + 400) if draw(seed).numbered]
    assert not any(failed(seeds)) and not any(cut_off(seeds)) and not any(in_chunks(seeds)) and len(seeds) > 20


@pytest.mark.parametrize("seeds", some_later([500, 2000], 2000))
def test_what_is_cut_off_in_the_middle_of_rounds_goes_on_with_what_was_not_yielded(seeds: int) -> None:
    failures = list(cut_off(range(seeds), coordinated=True))
    assert not any(failures) and len(failures) > seeds / 50


# --- planted bugs ----------------------------------------------------------------------------------------------


class WithoutAcknowledgements(TrainerState):
    """Reports no batch that it has received as the fourth."""

    def _on_batches(self, event: Any, now: float, done: Any) -> None:
        before = self.outgoing.acknowledge
        if sum(self.queue._received.values()) == 3:
            self.outgoing.acknowledge = lambda *batches: None  # type: ignore[method-assign]  # the planted bug
        super()._on_batches(event, now, done)
        self.outgoing.acknowledge = before  # type: ignore[method-assign]  # as it was


class HasRoomForAll(TrainerState):
    """Takes more however much waits."""

    def _room(self, *, answered: bool = False) -> bool:
        return True


class ForgetsTheHeld(JobState):
    """Takes everything for delivered that a lost worker held."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settled = self.ledger.settled

        def forgetful(rank: int, worker: str) -> None:
            if worker in self.ledger.workers:
                self.ledger.workers[worker].pending_leases.clear()
            settled(rank, worker)

        self.ledger.settled = forgetful  # type: ignore[method-assign]  # the planted bug


class CountsQueuedAsYielded(DeliveryLog):
    """Takes batches for yielded that wait in a queue."""

    def beyond(self, batches: int) -> Any:
        return iter(())


class KeepsRevokedRounds(Rounds):
    """Lets ranks keep batches of which others have none."""

    def note_lost(self, worker: str) -> None:
        self._received.pop(worker, None)


def waits_with_all_it_has(*told: Any) -> AskLeases:
    """Waits for room in the window with elements that are in no batch."""
    return replace(AskLeases(*told), holds_nothing=True)


def takes_the_newest(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Leaves out what ranks behind have not used."""
    return dict(max(states, key=lambda state: int(state["batches"])))


def all_that_is_missing(*arguments: Any) -> None:
    """Has holes in the states of one worker that gives rows in order, where it knows of what yields none."""


COORDINATED = (seed for seed in range(3000) if draw(seed).coordinated)


@pytest.mark.parametrize(
    ("place", "bug", "failures"),
    [
        ("tests.protocol.job.JobState", ForgetsTheHeld, failed(range(300))),
        ("tests.protocol.trainer.TrainerState", WithoutAcknowledgements, failed(range(300))),
        ("tests.protocol.trainer.TrainerState", HasRoomForAll, failed(range(300))),
        ("pecan_ray.job.state.DeliveryLog", CountsQueuedAsYielded, cut_off(range(300))),
        ("pecan_ray.job.ledger_state.Rounds", KeepsRevokedRounds, failed(COORDINATED)),
        ("pecan_ray.job.lease_requests.AskLeases", waits_with_all_it_has, in_chunks(range(400, 800))),
        ("tests.protocol.saved.merge_states", takes_the_newest, cut_off(range(1100, 1300))),
        ("pecan_ray.job.resume._beginning", all_that_is_missing, cut_off(range(5650, 5700))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, place: str, bug: Any, failures: Iterator[str]) -> None:
    monkeypatch.setattr(place, bug)
    assert any(failures)


class CountsNothing(JobState):
    """Counts no element that is left out."""

    def handle(self, event: Any, now: float) -> Any:
        done = super().handle(event, now)
        self.ledger.left_out_elements = 0
        return done


@pytest.mark.parametrize("visited", [{"sharding": "off"}, {"visitation": "zero_or_more"}])
def test_what_is_left_out_must_be_counted_at_every_level(
    monkeypatch: pytest.MonkeyPatch, visited: dict[str, Any]
) -> None:
    scenario = replace(Scenario(sources=FEW, batch_size=4, drop_remainder=True), **visited)
    assert play(scenario).failure == ""
    monkeypatch.setattr("tests.protocol.job.JobState", CountsNothing)
    assert "are counted" in play(scenario).failure


def test_an_element_comes_twice_in_the_epoch_alone_in_which_a_worker_is_taken_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert play(REPEATS).failure == ""
    monkeypatch.setattr("tests.protocol.audit.undisturbed", lambda world, epoch: True)
    assert "of epoch 2 again" in play(REPEATS).failure


def test_time_in_which_the_controller_stood_still_must_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(steps_s=(30.0,), epochs=5, faults=(Fault(10.0, "freeze controller", seconds=90.0),))
    assert play(scenario).failure == ""
    monkeypatch.setattr("tests.protocol.job.LONGEST_GAP_S", math.inf)  # the planted bug
    assert "has not been heard" in play(scenario).failure


@pytest.mark.parametrize("arguments", [("--seed", "3"), ("--histories", "10", "--first", "50", "--hurt-controllers")])
def test_the_command_tells_what_it_has_played(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "every promise was kept" in said or "0 failures" in said
