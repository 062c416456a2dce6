"""The journal: a job is made again from it; one that is damaged or another job's is refused."""

from __future__ import annotations

import json
import pickle
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pecan_ray.errors import JournalError
from pecan_ray.job import events
from pecan_ray.job.instructions import Response
from pecan_ray.job.journal import (
    Handled,
    JournalEntry,
    PageHandled,
    PlanAdded,
    entries,
    handled,
    journal_header,
    packed,
    pages,
    replay,
    snapshot,
)
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import Reply
from pecan_ray.job.spec import ErrorPolicy, JobSpec
from pecan_ray.job.state import JobState
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Lease, Split

SPEC = JobSpec("kept", LedgerShape(world_size=2), Workers(2, 1))
PAGE = events.SplitPageReceived(0, (Split(0, "é\n"), Split(1, "b")))
"""The only one of the short job's listing."""


def written(spec: JobSpec = SPEC) -> list[JournalEntry]:
    state = JobState(spec, 10.0)
    told: list[JournalEntry] = [journal_header(spec, 10.0)]
    happened: list[events.Event] = [
        *(events.TrainerRegistered(rank, f"i{rank}", "host") for rank in range(spec.shape.world_size)),
        events.RoomFound((("host", 4.0),), (4.0, 4.0)),
        PAGE,
        events.OrderKnown(changed=False),
        events.WorkerPlaced("pecan:kept:local-0", "host", 7),
        events.WorkerReady("pecan:kept:local-0"),
        events.JobFailed(ValueError("no such luck")),
        events.TimePassed(),
    ]
    for number, event in enumerate(happened):
        told.append(handled(event, 10.0 + number, state.handle(event, 10.0 + number)))
    return [*told, PlanAdded(b"\x00plan")]


def data_of(told: Sequence[JournalEntry]) -> bytes:
    return b"".join(map(packed, told))


def whole(body: bytes) -> bytes:
    """An entry that was written whole, with anything in it."""
    head = b"%08x%08x" % (zlib.crc32(body), len(body))
    return b"%s%08x %s\n" % (head, zlib.crc32(head), body)


def read(data: bytes) -> tuple[int, list[bytes]]:
    job = replay((entry for entry, _ in entries(data)), SPEC, [PAGE])
    return job.events, job.plan_versions


def test_a_snapshot_holds_no_pages_of_listings() -> None:
    """A million splits would stop the job for seconds."""
    job = replay(written(), SPEC, [PAGE])
    before = len(snapshot(job.state, [], 0.0, 1).state)
    many = tuple(Split(index, f"part-{index}") for index in range(2, 10_000))
    job.state.handle(events.SplitPageReceived(0, many), 60.0)
    assert len(snapshot(job.state, [], 0.0, 1).state) < before + 10_000


def test_a_journal_that_ends_anywhere_tells_of_what_was_whole() -> None:
    data = data_of(written())
    ends = [end for _, end in entries(data)]
    assert ends[-1] == len(data)
    around = {end + near for end in [0, *ends[:-1]] for near in (-1, 0, 1)}
    for end in sorted({*around, *range(0, len(data), 29)} & set(range(len(data)))):
        whole = sum(one <= end for one in ends)
        if not whole:
            with pytest.raises(JournalError, match="does not begin"):
                read(data[:end])
        else:
            assert read(data[:end])[0] == min(whole - 1, len(written()) - 2)


def test_a_damaged_entry_is_refused() -> None:
    data = bytearray(data_of(written()))
    chance = random.Random(1)
    for _ in range(300):
        place = chance.randrange(len(data))
        before = data[place]
        data[place] = chance.choice([other for other in (0, 10, 32, 65, 123, 255, before ^ 1) if other != before])
        with pytest.raises(JournalError, match="damaged"):
            read(bytes(data))
        data[place] = before


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ([], "does not begin"),
        (written()[1:], "does not begin"),
        ([*written(), journal_header(SPEC, 10.0)], "begins twice"),
        (written(replace(SPEC, name="another")), "one of job another"),
        (written(replace(SPEC, errors=ErrorPolicy(budget=0.5))), "another run of that name"),
        ([written()[0], Handled(events.TimePassed(), 11.0, 123)], "leads to something else than it did"),
        ([*written(), PageHandled(30.0, 0)], "2 pages of listings, and 1 were written"),
    ],
)
def test_what_is_no_journal_of_this_job_is_refused(told: list[JournalEntry], match: str) -> None:
    with pytest.raises(JournalError, match=match):
        read(data_of(told))


def test_a_replay_tells_answers_by_how_many_leases_they_hold() -> None:
    event, lease = events.TimePassed(), Lease(0, Split(0))
    replies: list[Reply] = [(), (lease,), (lease, lease), "stop"]
    did = {handled(event, 10.0, [Response("w", "main", 1, reply)]).did for reply in replies}
    assert len(did) == len(replies)


@pytest.mark.parametrize("body", [b"[]", b'{"at": 1}', b"", pickle.dumps(7), pickle.dumps(PAGE)])
def test_what_is_no_entry_or_one_of_another_version_is_refused(body: bytes) -> None:
    with pytest.raises(JournalError, match="format 99"):
        read(whole(json.dumps({"journal": 99, "name": "kept", "spec": 1, "began": 0.0}).encode()))
    with pytest.raises(JournalError, match=r"entry 1 of a journal cannot be (read|unpickled)"):
        read(whole(body))
    if body != pickle.dumps(PAGE):
        with pytest.raises(JournalError, match="entry 1 of a journal"):
            list(pages(whole(body)))
