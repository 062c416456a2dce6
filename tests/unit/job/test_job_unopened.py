"""Splits that some workers cannot open: others read them, and what nobody can open is left out by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.engines.contract import BadElement, Leases
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.reading import read_lease
from pecan_ray.errors import PecanError
from pecan_ray.job import events
from pecan_ray.job.messages import AskLeases, LeftOutElement, SplitOpenFailure
from pecan_ray.job.split_open_failures import PLACE_S
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Lease, Source, Split
from pecan_ray.sources import TextLines
from tests.protocol import Scenario, SplitModel
from tests.unit.job.job_histories import played
from tests.unit.job.job_rig import JobRig, said

SPLITS = tuple(SplitModel((1,) * 7) for _ in range(12))
TWO_NODES = Scenario(sources=(SPLITS,), batch_size=4, local=1, remote=1, epochs=2, error_budget=0.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("unseen", [0.3, 1.0])
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_a_remote_worker_cannot_open_a_local_one_reads(seed: int, unseen: float, shuffled: bool) -> None:
    world = played(replace(TWO_NODES, seed=seed, unseen=unseen, shuffled=shuffled, ranks=1 + seed % 2))
    state = world.job.state
    assert state.error is None and state.bad.count == 0 and state.rows == 2 * 12 * 7
    told = [event.text for event in state.told if "is taken out" in event.text]
    assert len(told) == (unseen == 1.0)


class TwoWorkers:
    """A job of two workers, on two nodes, with some splits of 100 bytes."""

    def __init__(self, splits: int) -> None:
        self.rig = JobRig(workers=Workers(1, 1), on_error="skip")
        self.local, self.remote = self.rig.come(("here", 4.0), remote=(4.0,))
        self.rig.handle(events.SplitsListed(0, tuple(Split(n, f"/{n}.txt", 0, 100) for n in range(splits))))
        self.rig.handle(events.ListingEnded(0))

    def refuse(self, worker: str, *leases: Lease) -> str:
        """Let a worker say that it cannot open splits, and return what was logged."""
        told = []
        for lease in leases:
            error = LeftOutElement(lease.key, "read", lease.split.where(0), "no such file.", open_end=True)
            told.append(SplitOpenFailure(lease.key, lease.spans, error))
        return said(self.rig.ask(worker, AskLeases(self.rig.job.ledger.epoch, 0, 1, split_open_failures=tuple(told))))


def test_what_no_worker_can_open_is_left_out_with_its_node_and_its_size() -> None:
    two = TwoWorkers(3)
    rig = two.rig
    rig.place(two.local, "here")
    rig.place(two.remote, "there")
    rig.assign(two.local)
    rig.assign(two.remote)
    (first,) = rig.take(two.local)
    (other,) = rig.take(two.remote)
    assert two.refuse(two.remote, other) == ""
    rig.ask(two.local, AskLeases(0, 0, 1, lengths=((first.key, 50),)))
    again = rig.job.ledger.workers[two.local].pending_leases[other.key].lease
    text = two.refuse(two.local, again)
    assert f"left out element 0 of {other.split.path}" in text
    assert f"({two.remote} on node there could not open it) About 50 elements are left out" in text
    assert rig.job.bad.count == 50


def test_a_split_is_left_out_when_the_last_worker_that_could_try_is_gone() -> None:
    two = TwoWorkers(1)
    rig = two.rig
    rig.place(two.remote, "there")
    rig.assign(two.remote)
    two.refuse(two.remote, *rig.take(two.remote))
    rig.handle(events.WorkerPending(two.local, "there is no CPU"))
    assert rig.job.bad.count == 0
    rig.handle(events.TimePassed(), after=1.0)
    done = rig.handle(events.TimePassed(), after=10.0)
    assert "1 split(s) that no worker that runs can open wait" in said(done) and rig.job.bad.count == 0
    done = rig.handle(events.TimePassed(), after=PLACE_S)
    assert "left out element 0 of /0.txt" in said(done) and rig.job.bad.count == 1


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
    "as given": lambda leases, source: leases,
    "accounted": lambda leases, source: LeaseTracker(leases),
    "behind none": lambda leases, source: LeasesBehind(leases, [source], [0]),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("content", [None, b"good\n", b"\xff\n"])
def test_a_reader_leaves_to_others_what_it_cannot_open(
    tmp_path: Path, content: bytes | None, others: bool, wrapped: str
) -> None:
    path = tmp_path / "a.txt"
    lease = Lease(0, Split(0, str(path), 0, 5))
    if content is not None:
        path.write_bytes(content)
    given, source = Given(others), TextLines(str(path))
    leases = WRAPPED[wrapped](given, source)
    read = read_lease(source, lease, leases, SkippedPositions(), "skip")
    found = [value["text"] for _, value, _ in read]
    assert found == (["good"] if content == b"good\n" else [])
    assert len(given.elsewhere_told) == (content is None)
    opened = content is not None  # a line that cannot be read is an element, too
    assert given.lengths == ([] if not opened and others else [int(opened)])


@pytest.mark.parametrize("others", [True, False])
def test_nothing_is_missing_of_a_lease_that_is_left_to_others(others: bool) -> None:
    lease = Lease(0, Split(0, elements=3))

    class One(Given):
        def take(self, branch: int = 0) -> Lease | None:
            return None if self.elsewhere_told else lease

    leases = LeaseTracker(One(others))
    assert leases.take() == lease
    assert leases.elsewhere(lease, BadElement("a source", "split 0", "no such file")) == others
    if others:
        assert leases.unresolved_spans() == {}
    else:
        with pytest.raises(PecanError, match="neither delivered nor left out"):
            leases.unresolved_spans()
