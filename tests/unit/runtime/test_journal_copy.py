"""The copy of a journal in a bucket, on real servers: behind, but whole; nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pecan_ray import storage
from pecan_ray.errors import JournalError
from pecan_ray.job import events
from pecan_ray.job.journal import RestoredJob, entries, pages, replay
from pecan_ray.runtime import journal_copy
from pecan_ray.runtime.journal_copy import read_copy
from pecan_ray.runtime.journal_file import JournalPlace, bucket_folder, job_of
from pecan_ray.runtime.journaled_job import JournaledJob
from pecan_ray.storage import s3
from tests.flaky_http import FlakyProxy
from tests.object_stores import reaching_s3, s3_bucket
from tests.ray.waiting import until
from tests.unit.runtime.test_journal_file import GAP_S, PAGE, PLAN, SPEC, leave

NAME = "a job/ü"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_copy, "EVERY_S", 0.01)
    monkeypatch.setattr(journal_copy, "AGAIN_S", 0.05)


@pytest.fixture
def bucket(s3_endpoint: str) -> Iterator[tuple[str, FlakyProxy]]:
    with reaching_s3(s3_endpoint) as proxy, s3_bucket(s3_endpoint) as url:
        yield url, proxy
        proxy.outage = None
        proxy.faults.clear()


@pytest.fixture
def root(bucket: tuple[str, FlakyProxy]) -> str:
    return f"{bucket[0]}/journals/"


def of(folder: Path, root: str, actor: str = "a1", plan: bytes | None = PLAN) -> JournaledJob:
    return JournaledJob(SPEC, JournalPlace(folder, actor, actor, bucket_folder(root, NAME)), plan, GAP_S)


def begun(folder: Path, root: str, actor: str = "a1") -> JournaledJob:
    job = of(folder, root, actor)
    job.handle(events.TrainerRegistered(0, "i0", "host"))
    return job


def replay_result(root: str) -> RestoredJob:
    kept = read_copy(bucket_folder(root, NAME))
    assert kept is not None and job_of(kept.job, kept.where)[1] == PLAN
    found = (entry for entry, _ in entries(kept.journal))
    return replay(found, SPEC, [page for page, _ in pages(kept.listings)])


def names(root: str) -> list[str]:
    return [file.path.removeprefix(bucket_folder(root, NAME)) for file in storage.list_folder(root.rstrip("/"))]


def is_copied(root: str, folder: Path) -> bool:
    kept = read_copy(bucket_folder(root, NAME))
    files = [(folder / f"a1.{kind}").read_bytes() for kind in ("journal", "listings")]
    return kept is not None and [kept.journal, kept.listings] == files


def test_a_copy_tells_what_the_job_knows_and_goes_with_it(tmp_path: Path, root: str) -> None:
    job = of(tmp_path, root)
    assert not replay_result(root).state.trainers.ranks, "it is there before the job begins"
    job.handle(events.TrainerRegistered(0, "i0", "host"))
    job.handle(PAGE)
    job.add_plan(b"another order")
    until(lambda: replay_result(root).plan_versions == [b"another order"], "the copy does not come up")
    found = replay_result(root)
    assert (
        found.state.trainers.ranks[0].registration.incarnation == "i0"
        and len(found.state.ledger.queues.listings[0]) == 2
    )
    job.end()
    job.join()
    assert names(root) == [] and read_copy(bucket_folder(root, NAME)) is None
    assert not list(tmp_path.iterdir())


def test_a_process_that_goes_on_copies_what_there_is_and_then_removes_what_was_there(tmp_path: Path, root: str) -> None:
    job = begun(tmp_path, root)
    job.handle(PAGE)
    until(lambda: is_copied(root, tmp_path), "the copy does not come up")
    [folder] = {name.split("/")[1] for name in names(root)}
    leave(job)
    assert job._copy is not None
    job._copy.end(keep=True)  # the thread of a process that was killed writes nothing any more
    job.join()
    other = of(tmp_path, root, plan=None)
    other.handle(events.TimePassed())
    until(lambda: folder not in {name.split("/")[1] for name in names(root)}, "what was there stays")
    until(lambda: is_copied(root, tmp_path), "the copy does not come up")
    other.end()
    other.join()
    assert names(root) == []


def test_what_a_run_before_has_left_stays_and_is_said_and_the_newest_is_read(
    tmp_path: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = begun(tmp_path, root)
    first.handle(PAGE)
    first.end(deserted=True)
    assert len(replay_result(root).state.ledger.queues.listings[0]) == 2, "it is complete, though nothing waited for it"
    assert not list(tmp_path.iterdir()), "on this machine nobody goes on from it"
    second = begun(tmp_path, root, "a2")
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
    job = begun(tmp_path, root)
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
    with pytest.raises(JournalError, match=rf"the journal below {root}.* cannot be read: .*refused"):
        read_copy(bucket_folder(root, NAME))
    proxy.outage = 503
    monkeypatch.setattr(journal_copy, "END_S", 0.5)
    job.end()
    job.join()
    until(lambda: "removed: remove it: " in caplog.text, "it is not said that the copy stays")


@pytest.mark.parametrize("why", ["refused", "absent"])
def test_a_bucket_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, bucket: tuple[str, FlakyProxy], why: str
) -> None:
    root, proxy = bucket
    proxy.outage = 403 if why == "refused" else None
    root = root.replace("data", "absent") if why == "absent" else root
    with pytest.raises(JournalError, match=r"Config\(journal='s3://.*'\): no journal can be kept: .*s3://"):
        begun(tmp_path, root)
    assert not list(tmp_path.iterdir())
