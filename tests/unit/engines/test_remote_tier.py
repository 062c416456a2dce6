"""A cache's third tier: entries as objects that many machines share, behind real servers that fail."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.autocache.store_speed import SPEED, remote_speed
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines import entry_objects, remote_tier
from pecan_ray.engines.caching import SplitCache, entry_key
from pecan_ray.engines.entry_format import EntryReader, EntryWriter
from pecan_ray.engines.entry_objects import ENDING, HEAD, MAGIC, EntryObjects
from pecan_ray.engines.remote_tier import RemoteTier
from pecan_ray.errors import PlanError
from pecan_ray.plan.op_sequences import with_ops
from pecan_ray.plan.operators import Autocache, Plan
from tests.flaky_http import FlakyProxy
from tests.object_stores import reaching_gcs, reaching_s3, s3_bucket
from tests.ray.waiting import until
from tests.unit.engines.cache_rig import CALLS, READS, Numbers, double, kept, sorted_numbers
from tests.unit.engines.engine_leases import ListedLeases, delivered, running, whole_leases

SPLITS, EACH = 8, 5
ALL = list(range(SPLITS * EACH))
KIND = "0123abcd"
Parts: TypeAlias = Sequence[bytes | memoryview]


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[tuple[str, FlakyProxy]]:
    with reaching_s3(s3_endpoint) as proxy, s3_bucket(s3_endpoint) as url:
        yield f"{url}/cache", proxy
        proxy.outage = None
        proxy.stop_hanging.set()


@pytest.fixture
def gcs(gcs_endpoint: str) -> Iterator[tuple[str, FlakyProxy]]:
    with reaching_gcs(gcs_endpoint) as proxy:
        yield "gs://data/cache", proxy
        for file in list(storage.list_folder("gs://data")):
            storage.delete_file(file.path)


@pytest.fixture(params=["s3", "gcs", "mounted"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mounted":
        return str(tmp_path / "mounted" / "cache")
    return str(request.getfixturevalue(request.param)[0])


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for stores that do answer for as long as a busy machine takes; nothing is counted yet."""
    READS.clear()
    CALLS.clear()
    if not request.node.name.endswith(("[hang]", "[503]")):
        monkeypatch.setattr(entry_objects, "WAIT_S", 60.0)
    monkeypatch.setattr(remote_tier, "FLUSH_S", 120.0)


def plan_of(*, remote: bool = True) -> Plan:
    plan = kept(pecan.PecanPipeline(Numbers(SPLITS, EACH)).map(double).autocache().batch(EACH), KIND)
    (point,) = [op for op in plan.all_ops() if isinstance(op, Autocache)]
    return with_ops(plan, {point.name: replace(point, remote=remote)})


def epoch(cache: Cache, *, remote: bool = True) -> list[int]:
    """Go through an epoch with an engine of its own; return the numbers, each position once."""
    plan = plan_of(remote=remote)
    leases = ListedLeases(whole_leases(list(plan.sources())))
    with running(plan, leases, cache=cache) as (_, batches):
        found = list(batches)
    assert delivered(found) == leases.target()
    return sorted_numbers(found)


def node(tmp_path: Path, name: str, url: str) -> Cache:
    """A node's cache: the disk is its own, the store is everybody's."""
    return Cache(tmp_path / name, 64 << 20, remote=url)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    logged = [one for one in caplog.records if one.levelno >= logging.WARNING]
    return [one.getMessage() for one in logged if one.name == "pecan_ray.cache"]


def test_what_one_node_has_computed_another_one_reads(url: str, tmp_path: Path) -> None:
    objects, large = EntryObjects(url), bytes(range(256)) * (80 << 10)  # of several pieces
    assert objects.get(KIND, "large") is None and not list(objects.entries(KIND))
    objects.put(KIND, "large", [large, b"end"], elements=7, seconds=1.5)
    found = objects.get(KIND, "large")
    assert found is not None and bytes(found.data) == large + b"end"
    assert (found.info.elements, found.info.seconds, found.info.kind) == (7, 1.5, KIND)
    assert [key for key, _ in objects.entries(KIND)] == ["large"]
    objects.drop(KIND, "large")
    assert objects.get(KIND, "large") is None
    assert epoch(node(tmp_path, "one", url)) == ALL and CALLS["double"] == len(ALL)
    assert len(list(EntryObjects(url).entries(KIND))) == SPLITS, "all was written before the engine was closed"
    CALLS.clear()
    READS.clear()
    assert epoch(node(tmp_path, "other", url)) == ALL and not CALLS and not READS
    with EntryStore(tmp_path / "other", max_bytes=64 << 20) as disk:
        assert disk.verify() == (SPLITS, ()) and disk.sizes()[0].kind == KIND, "what was read lies on its disk now"
    for entry, file in list(EntryObjects(url).entries(KIND)):
        assert entry in file.path
        storage.delete_file(file.path)
    assert epoch(node(tmp_path, "other", url), remote=False) == ALL and not CALLS


def test_damaged_objects_are_dropped_and_those_of_a_newer_version_left_alone_and_either_is_said(
    s3: tuple[str, FlakyProxy], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, _ = s3
    assert epoch(node(tmp_path, "one", url)) == ALL
    files = [file.path for _, file in EntryObjects(url).entries(KIND)]
    spoilings: list[Callable[[bytes], bytes]] = [
        lambda whole: whole[:-9],
        lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        lambda whole: whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],  # of its head
        lambda whole: b"an error page",
        lambda whole: storage.read_all(files[-1]),
    ]
    for path, with_errors in zip(files, spoilings, strict=False):
        storage.write_file(path, with_errors(storage.read_all(path)))
    CALLS.clear()
    assert epoch(node(tmp_path, "other", url)) == ALL and CALLS["double"] == len(spoilings) * EACH
    (said,) = warnings_of(caplog)
    assert "a damaged entry is dropped from the remote store" in said and any(path in said for path in files)
    CALLS.clear()
    assert epoch(node(tmp_path, "third", url)) == ALL and not CALLS, "they were written again"
    caplog.clear()
    path, newer = files[0], HEAD.pack(MAGIC, 99, 2, 0) + b"of a later time"
    storage.write_file(path, newer)
    assert epoch(node(tmp_path, "fourth", url)) == ALL and CALLS["double"] == EACH
    (said,) = warnings_of(caplog)
    assert "newer version is left alone" in said and "format 99" in said
    tier = RemoteTier(EntryObjects(url), lambda text: None)
    key = path.rpartition("/")[2].removesuffix(ENDING)
    assert tier.get(KIND, key) is None
    tier.put(KIND, key, [b"x"], elements=1, seconds=1.0, anew=True)
    tier.close()
    assert storage.read_all(path) == newer


@pytest.mark.parametrize("fault", [503, "hang", 403])
def test_a_store_that_fails_in_the_middle_costs_no_element_and_is_said_once(
    fault: int | str, s3: tuple[str, FlakyProxy], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, proxy = s3
    assert epoch(node(tmp_path, "one", url)) == ALL
    CALLS.clear()
    before = len(proxy.requests)
    proxy.faults.extend([*["none"] * 4, *[fault] * 1000])
    assert epoch(node(tmp_path, "other", url)) == ALL
    assert (SPLITS - 4) * EACH <= CALLS["double"] < len(ALL), "what came before was read, and the rest computed"
    (said,) = warnings_of(caplog)
    assert "the remote store cannot be used" in said and (fault != "hang" or "does not answer within" in said)
    if fault != 503:  # which is tried again until patience is over
        assert len(proxy.requests) - before <= 4 + 2, "a read and a listing have failed, and nobody asks again"
    proxy.faults.clear()


def test_a_store_that_was_away_is_asked_again_and_has_what_it_missed(
    s3: tuple[str, FlakyProxy], tmp_path: Path
) -> None:
    url, proxy = s3
    said: list[str] = []
    now = [0.0]
    tier = RemoteTier(EntryObjects(url, wait_s=0.3), said.append, clock=lambda: now[0])
    proxy.outage = 503
    tier.put(KIND, "a", [b"x"], elements=1, seconds=1.0)
    until(lambda: bool(said), "the failure is said")
    until(tier.flush, "what failed is still to be written")
    refused = proxy.rejected
    for _ in range(200):
        assert tier.get(KIND, "a") is None and not tier.holds(KIND, "a")
        tier.put(KIND, "a", [b"x"], elements=1, seconds=1.0)
        assert tier.flush()
    # The listing that was under way beside the write that failed may still try again for as long as it waits.
    assert proxy.rejected - refused < 100, "it is left alone"
    proxy.outage = None
    now[0] += remote_tier.AWAY_S + 1
    tier.put(KIND, "a", [b"x"], elements=1, seconds=1.0)
    assert tier.flush(30) and tier.holds(KIND, "a")
    found = tier.get(KIND, "a")
    assert found is not None and found.data == b"x" and len(said) == 1
    tier.close()


def test_what_a_disk_has_and_the_store_has_not_is_sent_when_it_is_read(
    s3: tuple[str, FlakyProxy], tmp_path: Path
) -> None:
    """As when the store was away, or is new."""
    url, proxy = s3
    cache = node(tmp_path, "one", url)
    assert epoch(cache, remote=False) == ALL
    assert not proxy.requests, "a point that is not worth it is neither written nor looked for"
    plan, entries = plan_of(), SplitCache(cache)
    (point,) = [op for op in plan.all_ops() if isinstance(op, Autocache)]

    def all_sent() -> bool:
        assert all(entries.find(point, lease.split) is not None for lease in whole_leases(list(plan.sources())))
        return len(list(EntryObjects(url).entries(KIND))) == SPLITS

    until(all_sent, "all is sent, once the store is listed")
    entries.close()
    CALLS.clear()
    assert epoch(node(tmp_path, "other", url)) == ALL and not CALLS


def test_what_is_sent_is_what_was_kept_though_functions_write_into_what_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "mounted")
    plan = plan_of()
    (point,) = [op for op in plan.all_ops() if isinstance(op, Autocache)]
    split = whole_leases(list(plan.sources()))[0].split
    writer, here = EntryWriter(), SplitCache(node(tmp_path, "one", url))
    for number in range(16):
        writer.add(number, 0, 1, {"x": np.full((64, 64), number, np.float32)})
    here.keep(replace(point, remote=False), split, writer.finish(16), 16, 1.0)
    begun, changed, put = threading.Event(), threading.Event(), EntryObjects.put

    def late(self: EntryObjects, kind: str, key: str, parts: Parts, *, elements: int, seconds: float) -> None:
        begun.set()
        assert changed.wait(60)
        put(self, kind, key, parts, elements=elements, seconds=seconds)

    def changed_in_place() -> bool:
        found = here.find(point, split)
        assert found is not None
        for one in found.elements(apart=False):
            one.value["x"] -= 100
        return begun.is_set()

    monkeypatch.setattr(EntryObjects, "put", late)
    until(changed_in_place, "it is being sent, once the store is listed")
    changed.set()
    here.close()
    sent = EntryObjects(url).get(point.key, entry_key(point, split))
    assert sent is not None
    assert [one.value["x"][0, 0] for one in EntryReader(sent.data).elements()] == list(range(16))


def test_writing_is_behind_and_bounded(s3: tuple[str, FlakyProxy], monkeypatch: pytest.MonkeyPatch) -> None:
    url, proxy = s3
    said: list[str] = []
    tier = RemoteTier(EntryObjects(url), said.append)
    assert tier.get(KIND, "nothing") is None
    until(lambda: tier.is_missing(KIND, "0"), "it is listed")
    monkeypatch.setattr(remote_tier, "BEHIND_BYTES", 1000)
    proxy.outage = "hang"
    for number in range(5):
        tier.put(KIND, str(number), [bytes(400)], elements=1, seconds=1.0)
    assert len(set(said)) == 1 and len(said) == 3 and "faster than the remote store takes them" in said[0]
    assert not tier.flush(0.2), "it ends though the server says nothing for as long as the test runs"
    proxy.outage = None
    proxy.stop_hanging.set()
    assert tier.flush(30)
    assert sorted(key for key, _ in EntryObjects(url).entries(KIND)) == ["0", "1"]
    tier.put(KIND, "large", [bytes(5000)], elements=1, seconds=1.0)
    assert tier.flush(30) and tier.get(KIND, "large") is not None, "one is always taken"
    tier.close()


def test_what_others_write_is_found_after_a_while(s3: tuple[str, FlakyProxy]) -> None:
    url, _ = s3
    now = [0.0]
    tier = RemoteTier(EntryObjects(url), lambda text: None, clock=lambda: now[0])
    until(lambda: tier.is_missing(KIND, "a"), "it is listed")
    EntryObjects(url).put(KIND, "a", [b"x"], elements=1, seconds=1.0)
    assert tier.get(KIND, "a") is None, "nothing is asked for that was not listed"
    now[0] += remote_tier.LISTED_AGAIN_S + 1
    until(lambda: tier.get(KIND, "a") is not None, "it is listed again")
    tier.close()


def test_a_stores_speed_is_measured_once_and_kept(tmp_path: Path) -> None:
    url = str(tmp_path / "mounted" / "cache")
    objects = EntryObjects(url)
    with EntryStore(tmp_path / "folder", max_bytes=64 << 20) as store:
        speed = remote_speed(store, objects)
        assert speed.measurements >= 3 and speed.read_seconds(1 << 20, 8) > 0 and 0 <= speed.waiting <= 1
        assert not [one for one in (tmp_path / "mounted").rglob("*") if one.is_file()], "nothing is left of it"
        shutil.rmtree(tmp_path / "mounted")
        assert remote_speed(store, EntryObjects(url)) == speed
        assert json.loads(store.read_note(f"{SPEED} {url}") or "")["waiting"] == speed.waiting


def test_a_place_that_cannot_be_is_refused_and_a_secret_in_a_url_not_repeated() -> None:
    for bad in ("http://host/x", "s3://", "relative/path", "gs:///x"):
        with pytest.raises(PlanError, match=r"Cache\(remote=...\) must be"):
            Cache(remote=bad)
    with pytest.raises(PlanError, match="credentials are found") as caught:
        Cache(remote="s3://key:hidden-one@bucket/prefix")
    assert "hidden-one" not in str(caught.value)
