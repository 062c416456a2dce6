"""A job that writes a journal: where it lies, for its process alone, whole or not at all; slices, and a copy."""

from __future__ import annotations

import errno
import math
import os
import resource
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pecan_ray import storage
from pecan_ray.errors import JournalError
from pecan_ray.job import events, journal_slices
from pecan_ray.job.journal import RestoredJob, entries, packed, pages, replay
from pecan_ray.job.journal_slices import JournalSlice, in_order, next_slice, slice_named
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskAssignment, TrainerReport
from pecan_ray.job.spec import ErrorPolicy, JobSpec
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Split
from pecan_ray.runtime import journal_copy, journaled_job
from pecan_ray.runtime.journal_copy import read_copy
from pecan_ray.runtime.journal_file import (
    STALE_S,
    JournalFile,
    JournalPlace,
    bucket_folder,
    file_name,
    job_of,
    remove_stale,
)
from pecan_ray.runtime.journaled_job import JournaledJob
from pecan_ray.storage import s3
from tests.flaky_http import FlakyProxy
from tests.object_stores import reaching_s3, s3_bucket
from tests.ray.waiting import until

SPEC = JobSpec("kept", LedgerShape(world_size=1), Workers(1, 0))
PLAN = b"the job and its plan"
PAGE = events.SplitPageReceived(0, (Split(0, "a"), Split(1, "b")))
GAP_S = 3.0


def place(folder: Path, actor: str = "kept") -> JournalPlace:
    return JournalPlace(folder / "journals", "kept", actor)


def begun(folder: Path) -> JournaledJob:
    job = JournaledJob(SPEC, place(folder), PLAN, GAP_S)
    job.handle(events.TrainerRegistered(0, "i0", "host"))
    return job


def again(folder: Path) -> JournaledJob:
    return JournaledJob(SPEC, place(folder), None, GAP_S)


def leave(job: JournaledJob) -> None:
    for file in (job._file, job._listings):
        assert file is not None
        file.close()


def told(number: int, incarnation: str = "i0") -> tuple[events.Event, ...]:
    """What each sends that had so many answers before."""
    return (
        events.TrainerWaiting(0, incarnation, number=number),
        events.TrainerReported(TrainerReport(0, incarnation, number)),
        events.WorkerRequestReceived("pecan:kept:local-0", "run", number, AskAssignment()),
    )


def test_a_journal_that_lacks_whole_entries_at_its_end_is_named_by_what_others_know(tmp_path: Path) -> None:
    job = begun(tmp_path)
    job.handle(events.RoomFound((("host", 4.0),), (4.0, 4.0)))
    size = place(tmp_path).journal.stat().st_size
    orders = job.state.trainer_update(0).number
    for event in told(1):
        job.handle(event)
    leave(job)
    assert [again(tmp_path).lost_before(event) for event in told(2)[1:]] == [None, None]
    os.truncate(place(tmp_path).journal, size)
    other = again(tmp_path)
    assert [other.lost_before(event) for event in told(1)] == [None, None, None], "as if they had not been answered"
    assert [other.lost_before(event) for event in told(99, "refused")[:2]] == [None, None]
    said = f"orders of number 99, and the last ones there have number {orders}", "report 99", "asks its question 99"
    for event, known in zip(told(99), said, strict=True):
        lost = str(other.lost_before(event))
        assert f"{place(tmp_path).journal} has lost its last entries" in lost and known in lost


def test_what_a_run_before_has_left_is_kept_whole_each_time_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        job = JournaledJob(
            replace(SPEC, errors=ErrorPolicy(budget=number / 10)), place(tmp_path, f"a{number}"), PLAN, GAP_S
        )
        job.handle(events.TrainerRegistered(0, f"i{number}", "host"))
        assert place(tmp_path, f"a{number + 1}").job() is None, "only the same actor takes a job over"
        leave(job)
    assert len(list((tmp_path / "journals").iterdir())) == 9
    for number in (0, 1):
        name = f"kept%before-{number + 1}"
        aside = JournalPlace(tmp_path / "journals", name, f"a{number}")
        assert aside.job() == PLAN
        before = replay(
            (one for one, _ in entries(aside.journal.read_bytes())),
            replace(SPEC, errors=ErrorPolicy(budget=number / 10)),
        )
        assert before.state.trainers.ranks[0].registration.incarnation == f"i{number}"
        assert caplog.text.count(f"is kept as {tmp_path / 'journals' / name}.*; remove it") == 1
    assert [event.kind for event in job.state.story] == ["journal"], "the report tells it as well"
    lost = JournaledJob(replace(SPEC, errors=ErrorPolicy(budget=0.2)), place(tmp_path, "a2"), None, GAP_S)
    assert list(lost.state.story) == list(job.state.story), "and that of a controller in its place"


@pytest.mark.parametrize("full", ["_open", "append", "keep_job"])
def test_a_full_disk_at_the_start_of_a_job_leaves_the_journal_of_the_run_before_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    leave(begun(tmp_path))
    written = {file.name: file.read_bytes() for file in (tmp_path / "journals").iterdir()}
    assert len(written) == 3

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr({"_open": JournaledJob, "append": JournalFile, "keep_job": JournalPlace}[full], full, fails)
        with pytest.raises(JournalError, match=r"no journal can be kept: .*No space left"):
            JournaledJob(SPEC, place(tmp_path, "another"), PLAN, GAP_S)
    assert {file.name: file.read_bytes() for file in (tmp_path / "journals").iterdir()} == written
    # With room again, the job begins, and what was there before is put aside.
    JournaledJob(SPEC, place(tmp_path, "another"), PLAN, GAP_S)
    assert len(list((tmp_path / "journals").iterdir())) == 6


def test_a_job_that_runs_is_not_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecan_ray.runtime.journal_file.GONE_S", 0.2)
    living = begun(tmp_path)
    with pytest.raises(JournalError, match=r"a job of the name kept runs and writes .*kept\.journal.*give this one"):
        JournaledJob(SPEC, place(tmp_path, "another"), PLAN, GAP_S)
    living.handle(events.TimePassed())
    assert again(tmp_path).state.trainers.ranks and place(tmp_path).job() == PLAN


@given(st.text(max_size=300), st.text(max_size=300))
@example("a/b", "a%2Fb")
@example("a", "a%before-1")
@example("é", "e\u0301")
def test_jobs_of_different_names_have_different_files(one: str, other: str) -> None:
    names = [file_name(name) for name in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert all("/" not in name and len(f"{name}%before-1000.listings.new") <= 255 for name in names)
    assert "%before-" not in names[0], "what was put aside is no job's"


def test_nobody_else_can_read_them_and_where_none_can_be_written_a_job_that_wants_one_is_refused(
    tmp_path: Path,
) -> None:
    begun(tmp_path)
    folder = tmp_path / "journals"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    (tmp_path / "elsewhere").touch()
    link = tmp_path / "link.journal"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match=r"link\.journal cannot be opened"):
        JournalFile(link)
    with pytest.raises(JournalError, match="no journal can be kept"):
        JournaledJob(SPEC, JournalPlace(tmp_path / "elsewhere", "kept", "another"), PLAN, GAP_S)


def test_what_was_written_in_part_or_nothing_was_done_about_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, journal, pages = begun(tmp_path), place(tmp_path).journal, place(tmp_path).listings
    job.handle(PAGE)
    known, before, whole = job.state.ledger.queues.listings[0], journal.read_bytes(), pages.read_bytes()
    for rest in (packed(PAGE), packed(PAGE)[:50]):
        pages.write_bytes(whole + rest)
        journal.write_bytes(before + b"deadbeef00000")
        other = again(tmp_path).state
        assert pages.read_bytes() == whole and journal.read_bytes() == before
        listed = other.ledger.queues.listings[0]
        assert [listed[i] for i in range(len(listed))] == [known[0], known[1]] and other.trainers.ranks
    assert "ends in the middle of an entry" in caplog.text


@pytest.mark.parametrize("damage", ["journal", "job", "listings"])
def test_what_is_damaged_is_refused(tmp_path: Path, damage: str) -> None:
    begun(tmp_path).handle(PAGE)
    file = tmp_path / "journals" / f"kept.{damage}"
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
    read = place(tmp_path).job if damage == "job" else lambda: again(tmp_path)
    with pytest.raises(JournalError, match="damaged"):
        read()


def test_a_long_journal_is_compacted_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaled_job, "COMPACT_BYTES", 20_000)
    job, largest, file = begun(tmp_path), 0, place(tmp_path).journal
    job.add_plan(b"another order")
    job.handle(PAGE)
    for number in range(3000):
        job.handle(events.JobFailed(ValueError(f"{number}")) if number == 7 else events.TimePassed())
        largest = max(largest, file.stat().st_size)
    assert largest < 80_000
    at, other = job.now(), again(tmp_path)
    assert str(other.state.error) == "7" and other.plan_versions == [b"another order"]
    assert other.restarted and len(other.state.ledger.queues.listings[0]) == 2
    assert other.now() == pytest.approx(at, abs=60.0), "its time goes on where the last event was"
    other.handle(events.TimePassed())
    assert again(tmp_path).state.trainers.ranks
    other.end()
    assert not list((tmp_path / "journals").iterdir())


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """Let files of this process grow no larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("nbytes", [0, 100, 3000])
def test_a_job_goes_on_without_its_journal_where_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nbytes: int
) -> None:
    """A journal that lacks an event would be worse than none: it goes."""
    with files_of_at_most(nbytes):
        job = begun(tmp_path)
        for _ in range(100):
            job.handle(events.TimePassed())
    assert job.state.trainers.ranks and not list((tmp_path / "journals").iterdir())
    assert caplog.text.count("goes on without its journal, which cannot be written") == 1


def test_a_journal_that_cannot_be_opened_again_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaled_job, "COMPACT_BYTES", 1000)
    job, file = begun(tmp_path), place(tmp_path).journal

    def none_left(path: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("pecan_ray.runtime.journal_file._held", none_left)
        for _ in range(50):
            job.handle(events.TimePassed())
    assert not file.with_name(f"{file.name}.new").exists() and again(tmp_path).state.trainers.ranks
    before = file.stat().st_ino
    for _ in range(50):
        job.handle(events.TimePassed())
    assert file.stat().st_ino != before and again(tmp_path).state.trainers.ranks


def test_what_killed_trainers_have_left_goes_after_a_while(tmp_path: Path) -> None:
    living, folder = begun(tmp_path), tmp_path / "journals"
    for name in ("old", "new"):
        for kind in ("journal", "job", "listings"):
            (folder / f"{name}.{kind}").touch()
    old = time.time() - STALE_S - 60
    for file in (*folder.glob("old.*"), *folder.glob("kept.*")):
        os.utime(file, (old, old))
    remove_stale(folder)
    assert {file.name for file in folder.iterdir()} == {
        f"{name}.{kind}" for name in ("kept", "new") for kind in ("journal", "job", "listings")
    }
    living.end()


# --- slices: few, and whatever is there of them, a beginning of the file ----------------------------------------


class Objects:
    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: dict[str, bytes] = {}
        self.there: list[JournalSlice] = []
        self.written = 0

    def copy(self, file: bytes, generation: int = 0, base: int = 0, stays: bool = False) -> None:
        """Write what is not there yet; `stays`: what that takes the place of cannot be removed."""
        whole = JournalSlice("journal", generation, base, 0, len(file))
        while (step := next_slice(self.there, whole)) is not None:
            new, taken = step
            assert new.stop - new.start <= max(self.most, 1)
            self.kept[new.name] = file[new.start : new.stop]
            self.written += new.stop - new.start
            gone = self.there[len(self.there) - taken :]
            self.there[len(self.there) - taken :] = [new]
            for one in gone:
                if one.name != new.name and not stays:
                    del self.kept[one.name]

    def found(self) -> list[JournalSlice]:
        slices = [slice_named(name, len(data)) for name, data in self.kept.items()]
        return [one for one in slices if one is not None]

    def read(self) -> bytes:
        data = b""
        for one in in_order(self.found(), "journal"):
            assert one.start <= len(data)
            if one.start == len(data):
                data += self.kept[one.name]
        return data


@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([40, 200, 10_000]), st.booleans())
def test_a_file_that_grows_is_read_as_it_is(steps: list[int], most: int, stays: bool) -> None:
    before, journal_slices.MOST_SLICE_BYTES = journal_slices.MOST_SLICE_BYTES, most
    try:
        objects, file = Objects(most), b""
        for number, step in enumerate(steps):
            file += bytes([number]) * step
            objects.copy(file, stays=stays)
            assert objects.read() == file
    finally:
        journal_slices.MOST_SLICE_BYTES = before
    digits = math.log2(max(len(file), 1)) + 2
    assert objects.written <= len(file) * digits and len(objects.there) <= digits + 2 * len(file) / most


def test_a_generation_counts_as_soon_as_its_base_is_there_and_other_names_are_no_slices() -> None:
    objects = Objects(1 << 20)
    objects.copy(b"old entries")
    old = dict(objects.kept)
    objects.there = []
    objects.copy(b"snap", 1, 8)
    assert objects.read() == b"old entries", "half of a snapshot says nothing"
    objects.copy(b"snapshot", 1, 8)
    objects.kept |= old  # not yet removed
    assert objects.read() == b"snapshot"
    objects.copy(b"snapshot, and on", 1, 8)
    assert objects.read() == b"snapshot, and on"
    one = JournalSlice("listings", 3, 10, 20, 25)
    assert slice_named(one.name, 5) == one
    assert slice_named("job", 5) is slice_named(f"{one.name}.new", 5) is None


NAME = "a job/ü"


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FlakyProxy]]:
    """A folder of a bucket, and what it is reached by; copies come soon."""
    monkeypatch.setattr(journal_copy, "EVERY_S", 0.01)
    monkeypatch.setattr(journal_copy, "AGAIN_S", 0.05)
    with reaching_s3(s3_endpoint) as proxy, s3_bucket(s3_endpoint) as url:
        yield f"{url}/journals/", proxy
        proxy.outage = None


@pytest.fixture
def root(bucket: tuple[str, FlakyProxy]) -> str:
    return bucket[0]


def copied_job(folder: Path, root: str, actor: str = "a1", plan: bytes | None = PLAN) -> JournaledJob:
    return JournaledJob(SPEC, JournalPlace(folder, actor, actor, bucket_folder(root, NAME)), plan, GAP_S)


def replay_result(root: str) -> RestoredJob:
    kept = read_copy(bucket_folder(root, NAME))
    assert kept is not None and job_of(kept.job, kept.where)[1] == PLAN
    return replay((entry for entry, _ in entries(kept.journal)), SPEC, [page for page, _ in pages(kept.listings)])


def names(root: str) -> list[str]:
    return [file.path.removeprefix(bucket_folder(root, NAME)) for file in storage.list_folder(root.rstrip("/"))]


def is_copied(root: str, folder: Path) -> bool:
    kept = read_copy(bucket_folder(root, NAME))
    files = [(folder / f"a1.{kind}").read_bytes() for kind in ("journal", "listings")]
    return kept is not None and [kept.journal, kept.listings] == files


def test_a_copy_tells_what_the_job_knows_and_goes_with_it_and_a_process_that_goes_on_makes_another(
    tmp_path: Path, root: str
) -> None:
    job = copied_job(tmp_path, root)
    assert not replay_result(root).state.trainers.ranks, "it is there before the job begins"
    job.handle(events.TrainerRegistered(0, "i0", "host"))
    job.handle(PAGE)
    job.add_plan(b"another order")
    until(lambda: is_copied(root, tmp_path), "the copy does not come up")
    found = replay_result(root)
    assert found.plan_versions == [b"another order"] and len(found.state.ledger.queues.listings[0]) == 2
    assert found.state.trainers.ranks[0].registration.incarnation == "i0"
    [folder] = {name.split("/")[1] for name in names(root)}
    leave(job)
    assert job._copy is not None
    job._copy.end(keep=True)  # the thread of a process that was killed writes nothing any more
    job.join()
    other = copied_job(tmp_path, root, plan=None)
    other.handle(events.TimePassed())
    until(lambda: folder not in {name.split("/")[1] for name in names(root)}, "what was there stays")
    until(lambda: is_copied(root, tmp_path), "the copy does not come up")
    other.end()
    other.join()
    assert names(root) == [] and read_copy(bucket_folder(root, NAME)) is None
    assert not list(tmp_path.iterdir())


def test_what_a_run_before_has_left_stays_and_is_said_and_the_newest_is_read(
    tmp_path: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = copied_job(tmp_path, root)
    first.handle(PAGE)
    first.end(deserted=True)
    assert len(replay_result(root).state.ledger.queues.listings[0]) == 2, "it is complete, though nothing waited for it"
    assert not list(tmp_path.iterdir()), "on this machine nobody goes on from it"
    second = copied_job(tmp_path, root, "a2")
    assert not replay_result(root).state.ledger.queues.listings[0]
    kept = f"{bucket_folder(root, NAME)}/000001-a1/"
    assert caplog.text.count(f"is kept as {kept}; remove it") == 1
    told = list(second.state.story)
    assert [event.kind for event in told] == ["journal"] and kept in told[0].text
    until(lambda: list(replay_result(root).state.story) == told, "who goes on from it does not know")
    second.end()
    second.join()
    assert {name.split("/")[1] for name in names(root)} == {"000001-a1"}
    assert len(replay_result(root).state.ledger.queues.listings[0]) == 2


def test_a_store_that_says_nothing_stops_nobody_and_gets_all_of_it_later(
    tmp_path: Path,
    bucket: tuple[str, FlakyProxy],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, proxy = bucket
    monkeypatch.setattr(s3, "READ_S", 1.0)
    storage.reset_clients()
    job = copied_job(tmp_path, root)
    monkeypatch.setattr(journal_copy, "PATIENCE_S", 0.1)
    for outage in ("hang", 503):
        proxy.outage = outage
        for _ in range(500):
            job.handle(events.TimePassed())
        met = proxy.rejected
        until(lambda: proxy.rejected > met, "no request met the outage")  # noqa: B023 - it is called before it changes
    until(lambda: "cannot be copied" in caplog.text, "nothing was said")
    proxy.outage = None
    proxy.stop_hanging.set()
    until(lambda: is_copied(root, tmp_path), "the copy does not come up")
    assert f"the journal cannot be copied to {root}" in caplog.text
    proxy.outage = 403
    with pytest.raises(JournalError, match=r"no journal can be kept: .*s3://"):
        copied_job(tmp_path / "another", root)
    with pytest.raises(JournalError, match=rf"the journal below {root}.* cannot be read: .*refused"):
        read_copy(bucket_folder(root, NAME))
    proxy.outage = 503
    monkeypatch.setattr(journal_copy, "END_S", 0.5)
    job.end()
    job.join()
    until(lambda: "removed: remove it: " in caplog.text, "it is not said that the copy stays")
