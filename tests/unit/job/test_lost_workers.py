"""Workers that die or hang again and again: the element that they die of or hang at is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskLeases
from pecan_ray.job.spec import ErrorPolicy
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import OnError
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Split
from tests.protocol.scenario import HANGING, Scenario
from tests.unit.job.job_histories import played, split_of
from tests.unit.job.job_rig import JobRig, of_kind


def started(done: list[Instruction]) -> list[str]:
    return [start.worker for start in of_kind(StartWorker, done)]


ONE = Scenario(sources=((split_of(300), split_of(300, 177), split_of(300)),), batch_size=8, element_s=0.001, window=4)
HANGS = replace(ONE, sources=((split_of(300), split_of(300, 177, kind=HANGING), split_of(300)),))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("scenario", "most", "bad"),
    [
        (ONE, 6, 1),
        (replace(ONE, epochs=3), 6, 3),
        (replace(ONE, num_passes=2), 9, 2),
        (HANGS, 2, 1),
        (replace(HANGS, in_order=True, ranks=2), 2, 1),
        (replace(HANGS, names_element=False), 6, 1),
    ],
)
def test_an_element_that_kills_or_stops_workers_costs_a_few_and_is_left_out_of_the_epochs_and_passes_to_come(
    scenario: Scenario, most: int, bad: int, workers: int
) -> None:
    world = played(replace(scenario, local=workers))
    state = world.job.state
    assert state.error is None and world.deaths <= most and state.bad.count == bad
    told = [event.text for event in state.story if event.kind == "bad"]
    assert len(told) == bad and told[0].startswith("element 177 of split 1 is left out")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("splits", "ranks", "workers"), [((100,) * 3, 1, 2), ((300,), 1, 5), ((7,) * 30, 3, 1)])
def test_processes_that_die_again_and_again_and_get_on_are_no_reason_to_end(
    splits: tuple[int, ...], ranks: int, workers: int, on_error: OnError
) -> None:
    source = tuple(map(split_of, splits))
    leaky = replace(ONE, sources=(source,), leaks_after=25, batch_size=10, on_error=on_error, window=2)
    world = played(replace(leaky, local=workers, ranks=ranks))
    assert world.job.state.bad.count == 0 and world.deaths > 5


class FrontReader:
    """A job of one worker at a time, which comes to an element of its only split through all those before it."""

    def __init__(
        self,
        elements: int,
        fatal: int,
        *,
        ahead: int | None = None,
        on_error: OnError = "skip",
        dies_at: int = -1,
        counted: int | None = None,
    ) -> None:
        """`ahead`: reading dies of the fatal element, and computes so many ahead; None: an operator dies of it.

        `dies_at`: a worker dies as soon as the trainer has the element before this one, and another one at this one.
        `counted`: so many elements the split is known to have.
        """
        self._dies_before, self._dies_at = dies_at - 1, dies_at
        self.rig = JobRig(LedgerShape(from_front=(0,)), errors=ErrorPolicy(on_error, 1.0))
        self._elements, self._fatal, self._ahead = elements, fatal, ahead
        (self._worker,) = self.rig.begin([Split(0, elements=counted)])
        self.used: list[int] = []
        self.deaths = 0

    def run(self) -> None:
        while not (self.rig.job.ledger.finished or self.rig.job.error):
            self.rig.assign(self._worker)
            for lease in self.rig.leases(self._worker):
                if not self._read(lease):
                    break
            else:
                self.rig.end(self._worker)

    def _read(self, lease: Lease) -> bool:
        first, stop = (position >> OUTPUT_BITS for position in lease.spans[0])
        for number in range(first, max(first + 1, min(stop, self._elements))):
            if number == self._fatal if self._ahead is None else number + self._ahead >= self._fatal:
                self._die()
                return False
            if number == self._dies_at:
                self._dies_at = -1
                self._die()
                return False
            if number < self._elements:
                self.rig.acknowledge(self._worker, lease, number)
                self.used.append(number)
            if number == self._dies_before >= 0:
                self._dies_before = -1
                self._die()
                return False
        if stop > self._elements:
            self.rig.ask(self._worker, AskLeases(0, 0, 1, lengths=((lease.key, self._elements),)))
        return True

    def _die(self) -> None:
        self.deaths += 1
        lost, done = self._worker, self.rig.handle(events.WorkerLost(self._worker, "process", "it died"))
        started_again = started([*done, *self.rig.report(settled=(lost,))])
        for self._worker in started_again:
            self.rig.place(self._worker)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("ahead", [None, 0, 3])
def test_an_element_that_is_read_with_those_before_it_is_blamed_only_if_one_behind_it_can_be_read(
    ahead: int | None, on_error: OnError
) -> None:
    job = FrontReader(40, 13, ahead=ahead, on_error=on_error)
    job.run()
    named = 13 - (ahead or 0)
    error, told = job.rig.job.error, [event.text for event in job.rig.job.story if event.kind == "bad"]
    text = str(error) if on_error == "raise" else told[0]
    assert text.startswith(f"element {named} of split 0") and job.deaths <= 7
    assert ("or one that its dataset computes ahead of it" in text) == (ahead is not None)
    if on_error == "skip":
        assert job.used == [n for n in range(40) if (n != 13 if ahead is None else n < named)]
        assert (error, len(told), str(job.rig.job.bad.bad_count)) == (None, 1, "1" if ahead is None else "at least 1")


def test_an_element_is_blamed_where_the_worker_that_has_read_the_one_behind_it_dies_of_something_else() -> None:
    job = FrontReader(40, 13, dies_at=15)
    job.run()
    told = [event.text for event in job.rig.job.story if event.kind == "bad"]
    assert len(told) == 1 and told[0].startswith("element 13 of split 0 is left out: it ended the process of each")
    assert job.used == [number for number in range(40) if number != 13]


def test_the_last_element_of_a_split_is_left_out_though_none_is_behind_it() -> None:
    job = FrontReader(40, 39, counted=40)
    job.run()
    (told,) = (event.text for event in job.rig.job.story if event.kind == "bad")
    assert told.startswith("element 39 of split 0 is left out: it, or one that its dataset computes ahead of it")
    assert job.used == list(range(39)) and str(job.rig.job.bad.bad_count) == "1"
