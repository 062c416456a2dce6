"""The control plane of a job in its simulation: every promise is kept, and a bug that is planted is found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job.messages import Orders
from pecan_ray.job.state import JobState
from pecan_ray.job.trainer import TrainerState
from pecan_ray.job.worker import WorkerState
from tests.long_form import some_later
from tests.protocol import Fault, Scenario, SplitModel, World, draw, play, play_seeds, shrink
from tests.protocol.__main__ import main
from tests.unit.job.job_histories import CASES, REPEATS

HISTORIES, LOTS = 2000, 8
FEW = ((SplitModel((1,) * 5), SplitModel((1,))),)


@pytest.mark.parametrize("case", CASES)
def test_a_history_that_failed_once_keeps_every_promise(case: str) -> None:
    assert play(CASES[case]).failure == ""


@pytest.mark.parametrize("lot", some_later(range(LOTS), *range(1, LOTS)))
def test_every_promise_is_kept_in_histories_drawn_at_random(lot: int) -> None:
    share = HISTORIES // LOTS
    summary = play_seeds(range(lot * share, (lot + 1) * share))
    assert summary.failures == {}
    assert summary.batches > share


class WithoutAcknowledgements(TrainerState):
    """Reports no batch that it has received as the fourth."""

    def _on_batches(self, event: Any, now: float, done: Any) -> None:
        before = self.outgoing.acknowledge
        if sum(self.queue._received.values()) == 3:
            self.outgoing.acknowledge = lambda *batches: None  # type: ignore[method-assign]  # the planted bug
        super()._on_batches(event, now, done)
        self.outgoing.acknowledge = before  # type: ignore[method-assign]


class GivesBackTooMuch(TrainerState):
    """Gives back one batch more than it is asked for."""

    def _apply_order_update(self, orders: Orders, done: Any) -> None:
        if orders.keep:
            object.__setattr__(orders, "keep", orders.keep - 1)
        super()._apply_order_update(orders, done)


class KeepsNothingThatOrdersBring(TrainerState):
    """Keeps only the bad elements that come with batches."""

    def _apply_order_update(self, orders: Orders, done: Any) -> None:
        super()._apply_order_update(replace(orders, quarantine=()), done)


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


class TellsOfNoData(WorkerState):
    """Does not tell of data that yields no batch."""

    def _end_data(self, stretch: Any, made: Any, done: Any) -> None:
        return


class FlushesAlways(WorkerState):
    """Makes batches of leftovers that the job wants back."""

    def _settle_leftovers(self, reply: Any, done: Any) -> None:
        super()._settle_leftovers("flush", done)


class ForgetsLengths(WorkerState):
    """Tells no length of a split that it has read after its last question for leases."""

    def _on_assignment_finished(self, event: Any, now: float, done: Any) -> None:
        self._lots.noted()
        super()._on_assignment_finished(event, now, done)


class ForgetsWhomABatchIsFor(WorkerState):
    """Puts batches out for any rank."""

    def _put_out(self, stretch: Any, batch: Any, done: Any) -> None:
        super()._put_out(stretch, replace(batch, rank=None), done)


class LosesALease(WorkerState):
    """Forgets the first of several leases that come together."""

    def _on_reply_received(self, event: Any, now: float, done: Any) -> None:
        lost = isinstance(event.reply, tuple) and len(event.reply) > 2
        super()._on_reply_received(replace(event, reply=event.reply[1:]) if lost else event, now, done)


PLANTED: list[tuple[type[JobState], type[TrainerState], type[WorkerState]]] = [
    (JobState, WithoutAcknowledgements, WorkerState),
    (JobState, GivesBackTooMuch, WorkerState),
    (JobState, KeepsNothingThatOrdersBring, WorkerState),
    (ForgetsTheHeld, TrainerState, WorkerState),
    (JobState, TrainerState, TellsOfNoData),
    (JobState, TrainerState, FlushesAlways),
    (JobState, TrainerState, ForgetsLengths),
    (JobState, TrainerState, ForgetsWhomABatchIsFor),
    (JobState, TrainerState, LosesALease),
]


@pytest.mark.parametrize("parties", PLANTED, ids=lambda parties: "-".join(one.__name__ for one in parties))
def test_a_planted_bug_is_found(
    parties: tuple[type[JobState], type[TrainerState], type[WorkerState]],
) -> None:
    failing = (seed for seed in range(300) if World(draw(seed), *parties).run().failure)
    assert next(failing, None) is not None


class CountsNothing(JobState):
    """Counts no element that is left out."""

    def handle(self, event: Any, now: float) -> Any:
        done = super().handle(event, now)
        self.ledger.left_out_elements = 0
        return done


@pytest.mark.parametrize("visited", [{"sharding": "off"}, {"visitation": "zero_or_more"}])
def test_what_is_left_out_must_be_counted_at_every_level(visited: dict[str, Any]) -> None:
    scenario = replace(Scenario(sources=FEW, batch_size=4, drop_remainder=True), **visited)
    assert play(scenario).failure == ""
    assert "are counted" in World(scenario, CountsNothing).run().failure


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


def test_a_failing_history_becomes_a_smaller_one_that_fails_alike() -> None:
    def run(scenario: Scenario) -> Any:
        return World(scenario, trainer_state=WithoutAcknowledgements).run()

    seed = next(seed for seed in range(300) if run(draw(seed)).failure.startswith("ViolationError: it hangs"))
    small = shrink(draw(seed), run)
    assert run(small).failure.startswith("ViolationError: it hangs")
    assert sum(map(len, small.sources)) <= 4 and len(small.faults) <= 1


@pytest.mark.parametrize("arguments", [("--seed", "3"), ("--histories", "40", "--first", "50", "--hurt-controllers")])
def test_the_command_tells_what_it_has_played(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "every promise was kept" in said or "0 failures" in said
