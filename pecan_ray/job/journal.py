"""A job's journal: what has happened to it, an entry for each event, written before anything is done about it.

`JobState` is made again from its entries.  What was to be done is written beside each event, in short: a replay that
would do something else is refused, since actions were taken that it knows nothing of.

Splits are written apart from it, a page of a listing at a time: they stay as they are, and a snapshot need not hold
them.

Decisions: docs/decisions/restart-and-journal.md.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, cast, get_args

from pecan_ray.errors import JournalError
from pecan_ray.job.codec import decode, encode
from pecan_ray.job.events import Event, SplitPageReceived, TrainerReported, WorkerRequestReceived
from pecan_ray.job.instructions import Instruction, Log
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState

# The codec has a version of its own, for what events hold. This is the one of heads and entries.
FORMAT_VERSION = 6
NUMBER = 8
"""Digits of each number in an entry's head."""
HEAD = 3 * NUMBER + 1
"""Bytes of a head: checksum and length of what follows, a checksum of these two, and a line end."""
OFTEN = (TrainerReported, WorkerRequestReceived)
"""Events that come hundreds of times a second, with much in them: they are pickled, which takes a tenth of the time."""


@dataclass(frozen=True)
class JobHeader:
    """The first entry: whose journal it is, and when the job began."""

    name: str
    spec: int
    """What stands for everything that its decisions depend on."""
    started: float


@dataclass(frozen=True)
class Handled:
    """An event that was handled."""

    event: Event
    at: float
    did: int
    """What stands for the instructions that followed."""


@dataclass(frozen=True)
class PageHandled:
    """The next page of a listing was handled."""

    at: float
    did: int


@dataclass(frozen=True)
class PlanAdded:
    """Another version of the plan."""

    plan: bytes


@dataclass(frozen=True)
class JobSnapshot:
    """Everything that the entries before have led to."""

    state: bytes
    plan_versions: tuple[bytes, ...]
    at: float
    pages: int = 0
    """The number of pages of listings that it knows."""


JournalEntry: TypeAlias = JobHeader | Handled | PageHandled | PlanAdded | JobSnapshot


@dataclass
class RestoredJob:
    """A job as its journal tells of it."""

    state: JobState
    at: float
    """The time of the last event."""
    plan_versions: list[bytes] = field(default_factory=list)
    """Versions of the plan beyond the first."""
    pages: int = 0
    """The number of pages of listings that it knows."""
    events: int = 0
    """How many were handled since the last snapshot."""


def journal_header(spec: JobSpec, started: float) -> JobHeader:
    """Return what a job's journal begins with."""
    # Not hash(), which differs from process to process.
    return JobHeader(spec.name, zlib.crc32(repr(spec).encode()), started)


def handled(event: Event, at: float, done: Sequence[Instruction]) -> Handled | PageHandled:
    """Return what is written of an event, and of what was to be done about it."""
    did = digest(done)
    return PageHandled(at, did) if isinstance(event, SplitPageReceived) else Handled(event, at, did)


def snapshot(state: JobState, plans: Iterable[bytes], at: float, listed: int) -> JobSnapshot:
    """Return what can stand for all entries before, in which so many pages were listed."""
    return JobSnapshot(pickle.dumps(state), tuple(plans), at, listed)


def digest(done: Sequence[Instruction]) -> int:
    """Return a number that stands for instructions: their kinds, whom they concern, and how much an answer holds."""
    told: list[tuple[Any, ...]] = []
    for one in done:
        # A log changes nothing, so a replay may word it otherwise.
        if not isinstance(one, Log):
            reply = getattr(one, "reply", None)
            size = len(reply) if isinstance(reply, tuple) else type(reply).__name__
            told.append((type(one).__name__, getattr(one, "worker", ""), getattr(one, "number", 0), size))
    return zlib.crc32(repr(told).encode())


# --- entries as bytes ---------------------------------------------------------------------------------------


def packed(entry: JournalEntry | SplitPageReceived) -> bytes:
    """Return an entry, or a page, as it is written: a head in hexadecimal digits, then JSON or a pickle."""
    body = _body(entry)
    # Decision 37: the head has a checksum of its own, so that a damaged length is told from an entry that was
    # written in part.
    head = b"%08x%08x" % (zlib.crc32(body), len(body))
    return b"%s%08x %s\n" % (head, zlib.crc32(head), body)


def _body(entry: JournalEntry | SplitPageReceived) -> bytes:
    if isinstance(entry, JobHeader):
        return _json({"journal": FORMAT_VERSION, "name": entry.name, "spec": entry.spec, "began": entry.started})
    if isinstance(entry, Handled) and not isinstance(entry.event, OFTEN):
        return _json({"at": entry.at, "did": entry.did, **encode(entry.event)})
    if isinstance(entry, PageHandled):
        return _json({"at": entry.at, "did": entry.did})
    return pickle.dumps(entry)


def _json(written: dict[str, Any]) -> bytes:
    # The codec turns infinities into texts. A float that it has missed must fail here, not in a later read.
    return json.dumps(written, separators=(",", ":"), allow_nan=False).encode()


def entries(data: bytes) -> Iterator[tuple[JournalEntry, int]]:
    """Yield the entries of a journal, and where each ends; raises JournalError where one is damaged.

    What was written in part, at the end, was never acted on: it is no entry.
    """
    for number, (body, end) in enumerate(_bodies(data), 1):
        yield _entry(body, number), end


def pages(data: bytes) -> Iterator[tuple[SplitPageReceived, int]]:
    """Yield the pages of listings that were written apart, and where each ends; raises JournalError likewise."""
    for number, (body, end) in enumerate(_bodies(data), 1):
        page = _unpickle(body, number)
        if not isinstance(page, SplitPageReceived):
            raise JournalError(f"entry {number} of a journal's listing holds a {type(page).__name__}.")
        yield page, end


def _bodies(data: bytes) -> Iterator[tuple[bytes, int]]:
    start = number = 0
    # A head that was written in part is no entry either.
    while len(data) - start >= HEAD:
        number += 1
        head, begin = data[start : start + 2 * NUMBER], start + HEAD
        broken = JournalError(f"entry {number} of a journal is damaged: {data[start : start + 60]!r}.", entry=number)
        if data[start + 2 * NUMBER : begin] != b"%08x " % zlib.crc32(head):
            raise broken
        try:
            end = begin + int(head[NUMBER:], 16)
        except ValueError:
            raise broken from None
        # The process died while it wrote this entry, so nothing was done about its event.
        if end >= len(data):
            return
        body = data[begin:end]
        if head[:NUMBER] != b"%08x" % zlib.crc32(body) or data[end] != ord("\n"):
            raise broken
        start = end + 1
        yield body, start


def _entry(body: bytes, number: int) -> JournalEntry:
    try:
        # A pickle begins with the byte 0x80, so a brace is enough to tell the two apart.
        if not body.startswith(b"{"):
            return _unpickle_entry(body, number)
        written = json.loads(body)
        if "journal" in written:
            if written["journal"] != FORMAT_VERSION:
                raise JournalError(
                    f"a journal of format {written['journal']!r} cannot be read: this is format {FORMAT_VERSION}."
                )
            return JobHeader(str(written["name"]), int(written["spec"]), float(written["began"]))
        at, did = float(written["at"]), int(written["did"])
        if "type" not in written:
            return PageHandled(at, did)
        event = decode(written)
        if not isinstance(event, get_args(Event)):
            raise JournalError(f"entry {number} of a journal holds a {type(event).__name__}, which is no event.")
        return Handled(cast(Event, event), at, did)
    except JournalError:
        raise
    except Exception as error:  # values of any kind where others should be, or nested without end
        raise JournalError(f"entry {number} of a journal cannot be read: {error!r}.", entry=number) from error


def _unpickle_entry(body: bytes, number: int) -> JournalEntry:
    """Return an entry that was pickled; raises TypeError where it has other fields than its class has now."""
    entry = _unpickle(body, number)
    if not isinstance(entry, get_args(JournalEntry)):
        raise TypeError(f"it is a {type(entry).__name__}")
    # Unpickling sets fields without a look at the class, so an entry of another version would pass.
    if still_missing := [one.name for one in fields(entry) if not hasattr(entry, one.name)]:
        raise TypeError(f"a {type(entry).__name__} without {', '.join(still_missing)}")
    if more := vars(entry).keys() - {one.name for one in fields(entry)}:
        raise TypeError(f"a {type(entry).__name__} with {', '.join(sorted(map(repr, more)))}")
    return cast(JournalEntry, entry)


def _unpickle(body: bytes, number: int) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:  # unpickling what another version has written raises anything
        raise JournalError(f"entry {number} of a journal cannot be unpickled: {error!r}.", entry=number) from error


# --- replay -------------------------------------------------------------------------------------------------


def replay(found: Iterable[JournalEntry], spec: JobSpec, listed: Sequence[SplitPageReceived] = ()) -> RestoredJob:
    """Return the job as its journal tells of it; raises JournalError where it is another job's, or tells of another.

    `listed`: the pages of its listings, in the order in which they were handled.
    """
    remaining = iter(found)
    first = next(remaining, None)
    if not isinstance(first, JobHeader):
        raise JournalError("a journal does not begin with whose it is.")
    if first != journal_header(spec, first.started):
        raise JournalError(
            f"the journal is one of job {first.name}, or of another run of that name, and not of job {spec.name}. "
            "Remove it, or name another folder."
        )
    job = RestoredJob(JobState(spec, first.started), first.started)
    for entry in remaining:
        if isinstance(entry, Handled):
            _replay(job, entry.event, entry.at, entry.did)
        elif isinstance(entry, PageHandled):
            page, *_ = _some(listed, job.pages, job.pages + 1)
            job.pages += 1
            _replay(job, page, entry.at, entry.did)
        elif isinstance(entry, PlanAdded):
            job.plan_versions.append(entry.plan)
        elif isinstance(entry, JobSnapshot):
            state = _state(entry, _some(listed, 0, entry.pages))
            # A snapshot stands for all before it, so what was replayed so far is dropped.
            job = RestoredJob(state, entry.at, list(entry.plan_versions), entry.pages)
        else:
            raise JournalError("a journal begins twice.")
    return job


def _some(listed: Sequence[SplitPageReceived], start: int, stop: int) -> Sequence[SplitPageReceived]:
    if stop > len(listed):
        raise JournalError(f"a journal tells of {stop} pages of listings, and {len(listed)} were written.")
    return listed[start:stop]


def _replay(job: RestoredJob, event: Event, at: float, before: int) -> None:
    try:
        did = digest(job.state.handle(event, at))
    except Exception as error:  # an event of things that there are not
        raise JournalError(
            f"event {job.events + 1} of the journal, a {type(event).__name__}, cannot be handled again: {error!r}."
        ) from error
    job.at, job.events = at, job.events + 1
    if did != before:
        raise JournalError(
            f"event {job.events} of the journal, a {type(event).__name__}, leads to something else than it did: "
            "the job cannot go on from it."
        )


def _state(entry: JobSnapshot, listed: Iterable[SplitPageReceived]) -> JobState:
    try:
        state = pickle.loads(entry.state)
    except Exception as error:  # unpickling damaged bytes raises anything
        raise JournalError(f"a snapshot in a journal cannot be read: {error!r}.") from error
    if not isinstance(state, JobState):
        raise JournalError(f"a snapshot in a journal holds a {type(state).__name__}.")
    try:
        # Decision 37: a snapshot holds no splits, because a job of a million would stand still while they are written.
        for page in listed:
            state.ledger.queues.listings[page.branch].add(page.splits)
    except Exception as error:  # pages of another job, or damaged ones
        raise JournalError(f"the listings of a journal do not fit its snapshot: {error!r}.") from error
    return state
