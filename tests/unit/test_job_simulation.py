"""The control plane of a job in its simulation: every promise is kept, and a bug that is planted is found."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job.messages import Orders
from pecan_ray.job.state import JobState
from pecan_ray.job.trainer import TrainerState
from pecan_ray.simulator.protocol import Fault, Scenario, SplitModel, World, draw, play, play_seeds, shrink
from pecan_ray.simulator.protocol.__main__ import main
from pecan_ray.simulator.protocol.scenario import DEADLY, HANGING

HISTORIES, LOTS = 2000, 4
FEW = ((SplitModel((1,) * 5), SplitModel((1,))),)
REPEATS = Scenario(
    seed=21002574,
    sources=(
        tuple(
            SplitModel(one)
            for one in (
                *((1,), (3, 1, 0, 3, 1), (1,), (0, 0, 2, 3, 0), (1,), (2, 0, 1, 3, 2), (0, 0, 1), (1, 1, 3, 3)),
                *((1, 0, 1), (3, 1, 1, 2), (2, 1, 3, 3, 1), (2,)),
            )
        ),
    ),
    ranks=2,
    epochs=5,
    visitation="zero_or_more",
    batch_size=2,
    shuffled=True,
    page=1,
    page_s=8.0,
    cpus=1,
    prefetch_bytes=3 << 20,
    row_bytes=1 << 20,
    outbox=8,
    lot=2,
    element_s=0.002,
    steps_s=(0.001, 0.005),
    lost=0.2,
    doubled=0.05,
    on_error="quarantine",
    faults=(Fault(1.714036555145462, "slow trainer", 360, 5.0),),
)
"""With it elements are used twice: messages of a worker that lives are lost until it is taken for silent."""
CASES = {
    "shares that change end each worker before it is noticed that it hangs": Scenario(
        seed=41021091,
        sources=((SplitModel((1, 1)),), (SplitModel((1, 1)), SplitModel((HANGING,)))),
        ranks=2,
        epochs=None,
        batch_size=3,
        shuffled=True,
        page=1,
        page_s=1.0,
        local=0,
        remote=1,
        auto=True,
        cpus=1,
        rivals=4,
        row_bytes=1 << 20,
        element_s=0.0001,
        delay_s=0.1,
        stop_after=13,
        faults=(
            Fault(0.5190198686151324, "freeze worker", 729, 0.5),
            Fault(0.9267778802182298, "kill node", 891),
        ),
    ),
    "an element is blamed for workers whose messages were lost": Scenario(
        seed=33005019,
        sources=((SplitModel((1, 2, 1, 1, 0, 2, 3, 3)),),),
        epochs=2,
        repetitions=3,
        drop_remainder=True,
        page_s=1.0,
        remote=3,
        prefetch_bytes=1,
        outbox=1,
        apart=True,
        steps_s=(4.0,),
        lost=0.2,
        faults=(Fault(19.8, "slow trainer", 156, 5.0),),
    ),
    "static splits are dealt after the listing has ended": Scenario(sharding="static"),
    "static splits are repeated": Scenario(sources=FEW, repetitions=3, sharding="static"),
    "static splits wait for workers whose number changes": Scenario(
        sources=FEW,
        sharding="static",
        local=2,
        remote=1,
        faults=(Fault(0.2, "kill worker", 0), Fault(0.9, "scale", 1)),
    ),
    "a worker that gives all data comes while ranks give back": Scenario(
        seed=5540,
        sources=((SplitModel((1,)), SplitModel((1,)), SplitModel((1, 1))),),
        ranks=2,
        epochs=2,
        sharding="off",
        batch_size=2,
        remote=1,
        cpus=2,
        lot=16,
        element_s=0.0001,
    ),
    "a lost worker's batch comes while ranks give back": Scenario(
        seed=86,
        sources=(tuple(SplitModel((1,) * size) for size in (1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 1, 2)),),
        ranks=3,
        epochs=5,
        visitation="zero_or_more",
        batch_size=1,
        page=1,
        page_s=1.0,
        local=0,
        remote=2,
        cpus=2,
        prefetch_bytes=100_000,
        outbox=2,
        apart=True,
        lot=4,
        ahead=False,
        steps_s=(0.4, 0.02, 0.02),
        delay_s=0.0005,
        lost=0.2,
        doubled=0.05,
        trainer_timeout_s=40.0,
        worker_timeout_s=40.0,
        faults=(Fault(15.028465909557488, "scale", 100),),
    ),
    "a whole plan leaves a remainder": Scenario(batch_size=8, drop_remainder=True, serial=True),
    "each worker runs a whole plan": Scenario(
        seed=239, sources=((),), sharding="off", serial=True, local=0, remote=2, apart=True, delay_s=0.1
    ),
    "each worker runs a whole plan for several ranks": Scenario(
        sources=FEW, ranks=3, sharding="off", serial=True, local=1, remote=3, prefetch_bytes=1
    ),
    "a shuffled whole plan is made again": Scenario(
        seed=3816,
        sources=((SplitModel((0, 2)), SplitModel((2, 3)), SplitModel((1,))),),
        ranks=2,
        batch_size=3,
        shuffled=True,
        serial=True,
        page_s=1.0,
        apart=True,
        delay_s=0.1,
        lost=0.02,
        doubled=0.05,
        faults=(Fault(5.725138183571036, "kill worker", 820),),
    ),
    "an endless run has too few elements for its ranks": Scenario(
        sources=((SplitModel((1, 1)),),), ranks=3, epochs=None, stop_after=5
    ),
    "a node is lost with eight workers": Scenario(
        sources=FEW, batch_size=64, element_s=1.0, local=8, faults=(Fault(1.5, "kill node"),)
    ),
    "a slow rank gets what is regrouped in each epoch": Scenario(
        sources=FEW, ranks=2, epochs=40, batch_size=2, local=4, prefetch_bytes=1, steps_s=(0.4, 0.02)
    ),
    "a worker of a whole plan is lost when all ranks have their batches": Scenario(
        seed=4005240,
        sources=(
            tuple(
                SplitModel(one)
                for one in ((0,), (1, 0), (1, 0), (0, 1, 1, 1, 1), (0, 1), (1, 0, 1, 1, 1, 0, 1, 0), (1, 1, 1), (1, 0))
            ),
        ),
        ranks=3,
        epochs=3,
        visitation="zero_or_more",
        serial=True,
        page=2,
        cpus=1,
        outbox=8,
        element_s=0.0001,
        steps_s=(0.02, 0.02, 0.02, 0.4),
        delay_s=0.0005,
        lost=0.02,
        doubled=0.05,
        late_s=8.0,
        faults=(
            Fault(at=9.391941621756809, kind="scale", target=200),
            Fault(at=12.69562887781127, kind="scale", target=1),
            Fault(at=14.683342929193177, kind="break stream", target=352),
        ),
    ),
    "the only worker that gives all data is lost while ranks give back": Scenario(
        seed=11063861,
        sources=((SplitModel((1,)), SplitModel((1,))),),
        ranks=2,
        sharding="off",
        visitation="zero_or_more",
        batch_size=2,
        serial=True,
        page_s=0.02,
        local=0,
        remote=1,
        cpus=1,
        prefetch_bytes=67108864,
        row_bytes=1048576,
        apart=True,
        lot=16,
        element_s=0.02,
        doubled=0.05,
        faults=(Fault(at=0.8777618952680293, kind="kill worker", target=712),),
    ),
    "what was tried alone ends while a pass is to come": Scenario(
        seed=11034036,
        sources=((SplitModel((DEADLY,)), SplitModel((1,))),),
        repetitions=2,
        visitation="zero_or_more",
        batch_size=3,
        cpus=1,
        window=2,
        lost=0.02,
        on_error="quarantine",
    ),
    "nodes are lost with the one worker that has an ordered sequence, and others": Scenario(
        seed=11007565,
        sources=((SplitModel((1, 1)),),),
        ranks=2,
        in_order=True,
        local=4,
        prefetch_bytes=1,
        element_s=0.002,
        delay_s=0.0005,
        lost=0.2,
        faults=(
            Fault(at=0.7271178405468255, kind="kill node", target=704),
            Fault(at=2.565051687345965, kind="kill node", target=440),
        ),
    ),
    "nodes are lost before their workers of a plan that each runs have begun": Scenario(
        seed=10007863,
        sources=((),),
        sharding="off",
        local=3,
        cpus=2,
        order_s=9.0,
        faults=(Fault(6.1948404653047815, "kill node", 811), Fault(7.156100974593996, "kill node", 982)),
    ),
    "a controller stands still before it has heard that it goes on": Scenario(
        sources=((SplitModel((1,)), SplitModel((1,)), SplitModel((1,))),),
        ranks=2,
        page=2,
        page_s=1.0,
        faults=(Fault(0.7, "kill controller", seconds=3.0), Fault(1.4, "freeze controller", seconds=90.0)),
    ),
    "whole plans, one of each worker, leave a remainder": Scenario(
        sources=FEW, batch_size=4, drop_remainder=True, serial=True, sharding="off"
    ),
    "a node is lost with eight workers that each give all data": Scenario(
        sources=FEW, sharding="off", batch_size=64, element_s=1.0, local=8, faults=(Fault(1.5, "kill node"),)
    ),
    "a worker that gives all data is taken for silent when ranks have given back": Scenario(
        seed=41015794,
        sources=(tuple(SplitModel((1,) * size) for size in (9, 9, 4, 9, 6, 3, 5, 2, 1, 2, 4, 3)),),
        ranks=2,
        epochs=2,
        sharding="off",
        visitation="zero_or_more",
        cpus=2,
        prefetch_bytes=1,
        outbox=3,
        window=4,
        lot=2,
        ahead=True,
        element_s=0.0001,
        steps_s=(0.005, 0.001),
        delay_s=0.0005,
        lost=0.2,
    ),
    "of several workers that give all data one is taken for silent": Scenario(
        seed=41021212,
        sources=((SplitModel((1, 1)),), (SplitModel((1,)),) * 3),
        ranks=2,
        epochs=2,
        repetitions=3,
        sharding="off",
        visitation="zero_or_more",
        local=4,
        cpus=1,
        prefetch_bytes=1,
        outbox=3,
        window=2,
        lot=4,
        element_s=0.02,
        lost=0.2,
        names_element=False,
    ),
    "elements come twice since a worker was taken for silent": REPEATS,
    "a worker stands still before the next controller knows where it runs": Scenario(
        seed=53000286,
        ranks=3,
        sharding="static",
        visitation="zero_or_more",
        local=0,
        remote=1,
        cpus=1,
        apart=True,
        lost=0.02,
        faults=(
            Fault(0.6501332469918671, "freeze worker", 651, 0.5),
            Fault(1.1019984984324815, "kill controller", seconds=1.0),
            Fault(1.3699905552538563, "freeze worker", 489),
        ),
    ),
    "messages are slow and lost while a trainer waits": Scenario(seed=117, epochs=2, delay_s=0.1, lost=0.2),
}
"""Histories that failed once, made small."""


@pytest.mark.parametrize("case", CASES)
def test_a_history_that_failed_once_keeps_every_promise(case: str) -> None:
    assert play(CASES[case]).failure == ""


@pytest.mark.parametrize("lot", range(LOTS))
def test_every_promise_is_kept_in_histories_drawn_at_random(lot: int) -> None:
    share = HISTORIES // LOTS
    summary = play_seeds(range(lot * share, (lot + 1) * share))
    assert summary.failures == {}
    assert summary.batches > share


def test_a_history_is_the_same_in_every_process() -> None:
    code = (
        "from pecan_ray.simulator.protocol import draw, play\n"
        "for seed in range(40): one = play(draw(seed)); print(seed, one.events, one.seconds, one.batches, one.endings)"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hashing in ("1", "2")
    ]
    assert told[0] == told[1]


class WithoutAcknowledgements(TrainerState):
    """Reports no batch that it has received as the fourth."""

    def _on_batches(self, event: Any, now: float, done: Any) -> None:
        before = self.outgoing.acknowledge
        if sum(self.queue._received.values()) == 3:
            self.outgoing.acknowledge = lambda batch: None  # type: ignore[method-assign]  # the planted bug
        super()._on_batches(event, now, done)
        self.outgoing.acknowledge = before  # type: ignore[method-assign]


class GivesBackTooMuch(TrainerState):
    """Gives back one batch more than it is asked for."""

    def _obey(self, orders: Orders, done: Any) -> None:
        if orders.keep:
            object.__setattr__(orders, "keep", orders.keep - 1)
        super()._obey(orders, done)


class KeepsNothingThatOrdersBring(TrainerState):
    """Keeps only the bad elements that come with batches."""

    def _obey(self, orders: Orders, done: Any) -> None:
        super()._obey(replace(orders, quarantine=()), done)


class ForgetsTheHeld(JobState):
    """Takes everything for delivered that a lost worker held."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settled = self.ledger.settled

        def forgetful(rank: int, worker: str) -> None:
            if worker in self.ledger.workers:
                self.ledger.workers[worker].holdings.clear()
            settled(rank, worker)

        self.ledger.settled = forgetful  # type: ignore[method-assign]  # the planted bug


@pytest.mark.parametrize(
    ("job", "trainer"),
    [
        (JobState, WithoutAcknowledgements),
        (JobState, GivesBackTooMuch),
        (JobState, KeepsNothingThatOrdersBring),
        (ForgetsTheHeld, TrainerState),
    ],
)
def test_a_planted_bug_is_found(job: type[JobState], trainer: type[TrainerState]) -> None:
    failing = (seed for seed in range(300) if World(draw(seed), job, trainer).run().failure)
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
    monkeypatch.setattr("pecan_ray.simulator.protocol.audit.undisturbed", lambda world, epoch: True)
    assert "of epoch 4 again" in play(REPEATS).failure


def test_time_in_which_the_controller_stood_still_must_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(steps_s=(30.0,), epochs=5, faults=(Fault(10.0, "freeze controller", seconds=90.0),))
    assert play(scenario).failure == ""
    monkeypatch.setattr("pecan_ray.simulator.protocol.job.LONGEST_GAP_S", math.inf)  # the planted bug
    assert "has not been heard" in play(scenario).failure


def test_a_failing_history_becomes_a_smaller_one_that_fails_alike() -> None:
    def run(scenario: Scenario) -> Any:
        return World(scenario, trainer_state=WithoutAcknowledgements).run()

    seed = next(seed for seed in range(300) if run(draw(seed)).failure.startswith("ViolationError: it hangs"))
    small = shrink(draw(seed), run)
    assert run(small).failure.startswith("ViolationError: it hangs")
    assert sum(map(len, small.sources)) <= 4 and len(small.faults) <= 1


@pytest.mark.parametrize("arguments", [("--seed", "3"), ("--histories", "20", "--first", "50", "--hurt-controllers")])
def test_the_command_tells_what_it_has_played(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "every promise was kept" in said or "0 failures" in said
