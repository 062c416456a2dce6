"""A job's journal: what has happened to it, a line for each event, written before anything is done about it.

`JobState` is made again from its lines.  What was to be done is written beside each event, in short: a replay that
would do something else is refused, since actions were taken that it knows nothing of.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast, get_args

from pecan_ray.errors import JournalError
from pecan_ray.job.codec import decode, encode
from pecan_ray.job.events import Event, TrainerReported, WorkerAsked
from pecan_ray.job.instructions import Instruction, Log
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState

FORMAT_VERSION = 1
CRC_DIGITS = 8
OFTEN = (TrainerReported, WorkerAsked)
"""Events that come hundreds of times a second, with much in them: they are pickled, which takes a tenth of the time."""


@dataclass(frozen=True)
class Opening:
    """The first line: whose journal it is, and when the job began."""

    name: str
    spec: int
    """What stands for everything that its decisions depend on."""
    began: float


@dataclass(frozen=True)
class Handled:
    """An event that was handled."""

    event: Event
    at: float
    did: int
    """What stands for the instructions that followed."""


@dataclass(frozen=True)
class PlanAdded:
    """Another version of the plan."""

    plan: bytes


@dataclass(frozen=True)
class JobSnapshot:
    """Everything that the lines before have led to."""

    state: bytes
    plans: tuple[bytes, ...]
    at: float


JournalEntry: TypeAlias = Opening | Handled | PlanAdded | JobSnapshot


@dataclass
class ReplayedJob:
    """A job as its journal tells of it."""

    state: JobState
    at: float
    """The time of the last event."""
    plans: list[bytes] = field(default_factory=list)
    """Versions of the plan beyond the first."""
    events: int = 0
    """How many were handled since the last snapshot."""


def opening(spec: JobSpec, began: float) -> Opening:
    """Return what a job's journal begins with."""
    return Opening(spec.name, zlib.crc32(repr(spec).encode()), began)


def handled(event: Event, at: float, done: Sequence[Instruction]) -> Handled:
    """Return what is written of an event, and of what was to be done about it."""
    return Handled(event, at, digest(done))


def snapshot(state: JobState, plans: Iterable[bytes], at: float) -> JobSnapshot:
    """Return what can stand for all lines before."""
    return JobSnapshot(pickle.dumps(state), tuple(plans), at)


def digest(done: Sequence[Instruction]) -> int:
    """Return a number that stands for instructions: their kinds, whom they concern, and how much an answer holds."""
    told: list[tuple[Any, ...]] = []
    for one in done:
        if not isinstance(one, Log):
            reply = getattr(one, "reply", None)
            size = len(reply) if isinstance(reply, tuple) else type(reply).__name__
            told.append((type(one).__name__, getattr(one, "worker", ""), getattr(one, "number", 0), size))
    return zlib.crc32(repr(told).encode())


# --- lines --------------------------------------------------------------------------------------------------


def line(entry: JournalEntry) -> bytes:
    """Return an entry as a line: a checksum, and JSON."""
    body = json.dumps(_json(entry), separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _json(entry: JournalEntry) -> dict[str, Any]:
    if isinstance(entry, Opening):
        return {"journal": FORMAT_VERSION, "name": entry.name, "spec": entry.spec, "began": entry.began}
    if isinstance(entry, Handled):
        head = {"at": entry.at, "did": entry.did}
        if isinstance(entry.event, OFTEN):
            return {**head, "event": _text(pickle.dumps(entry.event))}
        return {**head, **encode(entry.event)}
    if isinstance(entry, PlanAdded):
        return {"plan": _text(entry.plan)}
    return {"snapshot": _text(entry.state), "plans": [_text(plan) for plan in entry.plans], "at": entry.at}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def entries(data: bytes) -> Iterator[tuple[JournalEntry, int]]:
    """Yield the entries of a journal, and where each ends; raises JournalError where a line is damaged.

    What follows the last line's end was written in part, and never acted on: it is no entry.
    """
    start = number = 0
    while (end := data.find(b"\n", start)) >= 0:
        number += 1
        written = data[start:end]
        start = end + 1
        body = written[CRC_DIGITS + 1 :]
        if written[:CRC_DIGITS] != b"%08x" % zlib.crc32(body) or written[CRC_DIGITS : CRC_DIGITS + 1] != b" ":
            raise JournalError(f"line {number} of a journal is damaged: {written[:60]!r}.", line=number)
        yield _entry(body, number), start


def _entry(body: bytes, number: int) -> JournalEntry:
    try:
        written = json.loads(body)
        if not isinstance(written, dict):
            raise TypeError(f"it is a {type(written).__name__}")
        if "journal" in written:
            if written["journal"] != FORMAT_VERSION:
                raise JournalError(
                    f"a journal of format {written['journal']!r} cannot be read: this is format {FORMAT_VERSION}."
                )
            return Opening(str(written["name"]), int(written["spec"]), float(written["began"]))
        if "plan" in written:
            return PlanAdded(base64.b64decode(written["plan"]))
        if "snapshot" in written:
            plans = tuple(base64.b64decode(plan) for plan in written["plans"])
            return JobSnapshot(base64.b64decode(written["snapshot"]), plans, float(written["at"]))
        event = _event(written["event"]) if "event" in written else decode(written)
        if not isinstance(event, get_args(Event)):
            raise JournalError(f"line {number} of a journal holds a {type(event).__name__}, which is no event.")
        return Handled(cast(Event, event), float(written["at"]), int(written["did"]))
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"line {number} of a journal cannot be read: {error!r}.", line=number) from error


def _event(text: str) -> Any:
    try:
        return pickle.loads(base64.b64decode(text))
    except Exception as error:  # unpickling what another version has written raises anything
        raise ValueError(f"an event cannot be unpickled: {error!r}") from error


# --- replay -------------------------------------------------------------------------------------------------


def replay(found: Iterable[JournalEntry], spec: JobSpec) -> ReplayedJob:
    """Return the job as its journal tells of it; raises JournalError where it is another job's, or tells of another."""
    remaining = iter(found)
    first = next(remaining, None)
    if not isinstance(first, Opening):
        raise JournalError("a journal does not begin with whose it is.")
    if first != opening(spec, first.began):
        raise JournalError(
            f"the journal is one of job {first.name}, or of another run of that name, and not of job {spec.name}. "
            "Remove it, or name another folder."
        )
    job = ReplayedJob(JobState(spec, first.began), first.began)
    for entry in remaining:
        if isinstance(entry, Handled):
            _again(job, entry)
        elif isinstance(entry, PlanAdded):
            job.plans.append(entry.plan)
        elif isinstance(entry, JobSnapshot):
            job = ReplayedJob(_state(entry), entry.at, list(entry.plans))
        else:
            raise JournalError("a journal begins twice.")
    return job


def _again(job: ReplayedJob, entry: Handled) -> None:
    did = digest(job.state.handle(entry.event, entry.at))
    job.at, job.events = entry.at, job.events + 1
    if did != entry.did:
        raise JournalError(
            f"event {job.events} of the journal, a {type(entry.event).__name__}, leads to something else than it did: "
            "the job cannot go on from it."
        )


def _state(entry: JobSnapshot) -> JobState:
    try:
        state = pickle.loads(entry.state)
    except Exception as error:  # unpickling damaged bytes raises anything
        raise JournalError(f"a snapshot in a journal cannot be read: {error!r}.") from error
    if not isinstance(state, JobState):
        raise JournalError(f"a snapshot in a journal holds a {type(state).__name__}.")
    return state
