"""The journal: a job is made again from it, in any process; one that is damaged or another job's is refused."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.errors import JournalError
from pecan_ray.job import events
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.journal import (
    HEAD,
    Handled,
    JournalEntry,
    PageHandled,
    PlanAdded,
    digest,
    entries,
    handled,
    journal_header,
    packed,
    pages,
    replay,
    snapshot,
)
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.state import JobState
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Split
from tests.protocol.draw import draw
from tests.protocol.scenario import Fault, Scenario

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


def read(data: bytes, spec: JobSpec = SPEC) -> tuple[int, list[bytes]]:
    job = replay((entry for entry, _ in entries(data)), spec, [PAGE])
    return job.events, job.plan_versions


def test_what_was_written_comes_back_and_leads_to_the_same_job() -> None:
    job = replay(written(), SPEC, [PAGE])
    assert job.events == len(written()) - 2 and job.plan_versions == [b"\x00plan"] and job.at == 10.0 + job.events - 1
    listed = [page for page, _ in pages(packed(PAGE))]
    again = replay((entry for entry, _ in entries(data_of(written()))), SPEC, listed)
    assert list(again.state.ledger.queues) == list(job.state.ledger.queues)
    assert [event.text for event in again.state.story] == [event.text for event in job.state.story]
    assert again.state.worker_table.workers == job.state.worker_table.workers


def test_a_snapshot_stands_for_what_was_before_it() -> None:
    job = replay(written(), SPEC, [PAGE])
    whole: list[JournalEntry] = [journal_header(SPEC, 10.0), snapshot(job.state, job.plan_versions, job.at, job.pages)]
    event = events.TimePassed()
    state = replay((entry for entry, _ in entries(data_of(whole))), SPEC, [PAGE])
    assert state.pages == 1 and list(state.state.ledger.queues) == list(job.state.ledger.queues)
    assert state.events == 0 and state.plan_versions == job.plan_versions and state.at == job.at
    assert digest(state.state.handle(event, 50.0)) == digest(job.state.handle(event, 50.0))
    before = len(snapshot(job.state, [], 0.0, 1).state)
    many = tuple(Split(index, f"part-{index}") for index in range(2, 10_000))
    job.state.handle(events.SplitPageReceived(0, many), 60.0)
    assert len(snapshot(job.state, [], 0.0, 1).state) < before + 10_000, (
        "a million splits would stop the job for seconds"
    )


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
        (written(replace(SPEC, error_budget=0.5)), "another run of that name"),
        ([written()[0], Handled(events.TimePassed(), 11.0, 123)], "leads to something else than it did"),
        ([*written(), PageHandled(30.0, 0)], "2 pages of listings, and 1 were written"),
    ],
)
def test_what_is_no_journal_of_this_job_is_refused(told: list[JournalEntry], match: str) -> None:
    with pytest.raises(JournalError, match=match):
        read(data_of(told))


LOCAL = [f"pecan:kept:local-{number}" for number in range(2)]


def restarted(*happened: events.Event) -> tuple[JobState, list[Instruction]]:
    """The job after these events and the loss of its controller, and what it wants done then."""
    told = [entry for entry in written() if not isinstance(getattr(entry, "event", None), events.JobFailed)]
    state = replay(told, SPEC, [PAGE]).state
    for event in happened:
        state.handle(event, 20.0)
    return state, state.handle(events.ControllerRestarted(), 30.0)


def test_a_worker_that_is_gone_when_it_is_looked_for_is_replaced_and_nobody_is_blamed() -> None:
    state, _ = restarted()
    for number in range(20):
        name = LOCAL[0] if not number else f"pecan:kept:local-{number + 1}"
        state.handle(events.WorkerReady(name), 31.0)
        done = state.handle(events.WorkerLost(name, "restart", "it is gone"), 31.0)
        assert [one.worker for one in done if isinstance(one, StartWorker)] == [f"pecan:kept:local-{number + 2}"]
        assert state.error is None
    assert state.worker_table.losses.count == 0
    state.handle(events.WorkerFailed(LOCAL[0], ValueError("its controller was gone")), 31.0)
    assert state.error is None
    state.handle(events.WorkerFailed(LOCAL[1], ValueError("no such luck")), 32.0)
    assert str(state.error) == "no such luck", "of one that was not lost"


@pytest.mark.parametrize("body", [b"[]", b'{"at": 1}', b"", pickle.dumps(7), pickle.dumps(PAGE)])
def test_what_is_no_entry_or_one_of_another_version_is_refused(body: bytes) -> None:
    with pytest.raises(JournalError, match="format 99"):
        read(whole(json.dumps({"journal": 99, "name": "kept", "spec": 1, "began": 0.0}).encode()))
    with pytest.raises(JournalError, match=r"entry 1 of a journal cannot be (read|unpickled)"):
        read(whole(body))
    if body != pickle.dumps(PAGE):
        with pytest.raises(JournalError, match="entry 1 of a journal"):
            list(pages(whole(body)))


ROOT = Path(__file__).resolve().parents[3]


def endless(seed: int) -> Scenario:
    """A scenario with a journal that nobody goes on from."""
    return replace(draw(seed), faults=(*draw(seed).faults, Fault(math.inf, "kill controller")))


def ran(program: str, *arguments: object, **environment: str) -> str:
    """Run a program to its end, and return what it has printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


PLAY = """
import sys
from pathlib import Path
from pecan_ray.job.journal import entries, pages, replay
from tests.protocol import draw, play
from tests.protocol.world import World, spec_of
from tests.unit.job.test_journal import endless

folder = Path(sys.argv[1])
for seed in range(10):
    one = play(draw(seed))
    print(seed, one.events, one.seconds, one.batches, one.endings)
for seed in sys.argv[2:]:
    if (folder / seed).exists():
        listed = [page for page, _ in pages((folder / f"{seed}.listings").read_bytes())]
        replay((entry for entry, _ in entries((folder / seed).read_bytes())), spec_of(endless(int(seed))), listed)
    else:
        world = World(endless(int(seed)))
        world.run()
        (folder / f"{seed}.listings").write_bytes(b"".join(world.job.listings))
        (folder / seed).write_bytes(b"".join(world.job.journal))
"""


def test_a_process_with_another_order_of_sets_makes_the_same_histories_and_the_same_jobs(tmp_path: Path) -> None:
    """Events must not be handled in the order of a set of names, which differs from process to process."""
    seeds = [seed for seed in range(100) if draw(seed).ranks > 1 and draw(seed).faults][:5]
    told = [ran(PLAY, tmp_path, *seeds, PYTHONHASHSEED=order) for order in ("1", "2")]
    assert told[0] == told[1] and len(told[0].splitlines()) == 10
    assert len(list(tmp_path.iterdir())) == 2 * len(seeds)


# --- damage with a right checksum -----------------------------------------------------------------------------

DAMAGED = """
import random, resource, sys
from tests.unit.job.test_journal import outcome_of_damage

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # a pickle can ask for any memory
found = [outcome_of_damage(random.Random(seed)) for seed in range(int(sys.argv[1]), int(sys.argv[2]))]
print(sum(found), len(found))
"""


def outcome_of_damage(rng: random.Random) -> bool:
    """Damage entries and pages, mend their checksums, and read them: an error of ours, or a job."""
    bodies = [packed(entry)[HEAD:-1] for entry in written()]
    listing = [packed(PAGE)[HEAD:-1]]
    for _ in range(rng.choice((1, 1, 2))):
        some = rng.choice((bodies, bodies, bodies, listing))
        at = rng.randrange(len(some))
        some[at] = damaged(rng, some[at])
    if rng.random() < 0.2:
        rng.shuffle(bodies)
    try:
        data, listed = b"".join(map(whole, bodies)), b"".join(map(whole, listing))
        replay((entry for entry, _ in entries(data)), SPEC, [page for page, _ in pages(listed)])
    except JournalError:
        return True
    return False


def damaged(rng: random.Random, body: bytes) -> bytes:
    at = rng.randrange(len(body) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + rng.randbytes(rng.randrange(1, 9)) + body[at:]
    if kind == 2:
        return body[:at] + rng.choice((b"-1", b"null", b'"x"', b"[]", b"{}", b"9" * 30)) + body[at + 1 :]
    if kind == 3:
        number = re.search(rb"[0-9]+", body[at:])
        return body if number is None else body.replace(number[0], rng.choice((b"0", b"7", b"1e999", b"77777777")), 1)
    return body[:at] + bytes((rng.randrange(256),)) + body[at + 1 :]


@pytest.mark.parametrize("seeds", [(0, 300), pytest.param((300, 20_000), marks=pytest.mark.slow)])
def test_damage_with_a_right_checksum_is_a_clear_error_or_does_no_harm(seeds: tuple[int, int]) -> None:
    refused, found = map(int, ran(DAMAGED, *seeds).split())
    assert found / 2 < refused < found
