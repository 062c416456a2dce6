"""What is kept at autocache points: decided from a sample, written into the plan, told to the user."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import cache_options
from pecan_ray.autocache import store_speed
from pecan_ray.autocache.decision import (
    Kept,
    SampledCosts,
    prefix_key,
    with_kept_points,
)
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.autoorder.op_samples import costs_of
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.cache_options import MIB, Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.caching.tiers import TieredStore
from pecan_ray.cli import main
from pecan_ray.engines.entry_objects import EntryObjects
from pecan_ray.errors import CacheError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Autocache, Plan
from pecan_ray.storage import BlockCache
from pecan_ray.storage.ranges import FileRange

ROWS = 400


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 64 << 20)


def source() -> pecan.sources.Arrays:
    return pecan.sources.Arrays({"x": np.zeros((ROWS, 64), np.float32), "i": np.arange(ROWS)})


def waits(value: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return value


def large(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "x": np.zeros((500, 500), np.float32)}


def small(value: dict[str, Any]) -> dict[str, Any]:
    return {"i": value["i"]}


def drawn(value: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**value, "r": rng.random()}


def decide(
    pipe: PecanPipeline, cache: Cache, *, engine: EngineName = "python", cpus: float = 1, workers: int = 1
) -> Kept:
    request = OrderRequest(pipe.plan, elements=40, sample_all=True, mode="off")
    return with_kept_points(
        pipe.plan,
        lambda plan: costs_of(plan, [one.sample for one in order_plan(request).sequences]),
        name="ours",
        engine=engine,
        seed=0,
        cache=cache,
        cpus=cpus,
        workers=workers,
    )


def kept_at(kept: Kept) -> list[str]:
    return [op.name for op in kept.plan.all_ops() if isinstance(op, Autocache) and op.key]


def test_what_takes_long_is_kept_at_the_best_point_and_what_is_computed_sooner_is_not(cache: Cache) -> None:
    kept = decide(pecan.PecanPipeline(source()).map(waits).autocache().map(small).batch(4), cache)
    assert kept_at(kept) == ["autocache"]
    assert len(kept.notes) == 1 and "cache at 'autocache':" in kept.notes[0] and "against compute" in kept.notes[0]
    pipe = pecan.PecanPipeline(source()).map(small).map(large).autocache().map(small, name="again").batch(4)
    kept = decide(pipe, cache)
    assert kept_at(kept) == [] and kept.plan == pipe.plan and "autocache: compute:" in kept.notes[0]
    pipe = pecan.PecanPipeline(source()).map(waits).autocache(name="first").map(large).autocache(name="second").batch(4)
    assert kept_at(decide(pipe, cache)) == ["first"]
    pipe = pecan.PecanPipeline(source()).map(small).autocache(name="first").map(waits).autocache(name="second").batch(4)
    assert kept_at(decide(pipe, cache)) == ["second"]


class Slow(pecan.sources.Items):
    """Takes two milliseconds for an element."""

    def read(self, split: Any, start: int = 0) -> Any:
        for value in super().read(split, start):
            time.sleep(0.002)
            yield value


def test_the_tensorflow_engine_keeps_what_a_source_gives_and_says_which_points_keep_nothing(cache: Cache) -> None:
    items = Slow([{"i": i} for i in range(ROWS)])
    kept = decide(pecan.PecanPipeline(items).map(small).autocache(name="late").batch(4), cache, engine="tensorflow")
    assert kept_at(kept) == ["autocache_source"]
    assert kept.notes[-1] == "autocache: late: the tensorflow engine keeps what the source gives alone"
    marked = pecan.PecanPipeline(items).autocache(name="marked").map(small).batch(4)
    kept = decide(marked, cache, engine="tensorflow")
    assert kept_at(kept) == ["marked"] and len(kept.notes) == 1
    dataset = pecan.PecanPipeline.from_tf_data(lambda: None, name="theirs").map(waits).autocache().batch(4)
    kept = decide(dataset, cache, engine="tensorflow")
    assert kept_at(kept) == [] and "use its cache()" in kept.notes[0]


def test_a_source_that_is_slow_is_kept_though_nobody_has_marked_it(cache: Cache, tmp_path: Path) -> None:
    items = Slow([{"i": i} for i in range(ROWS)])
    kept = decide(pecan.PecanPipeline(items).map(large).autocache(name="large").map(small).batch(4), cache)
    assert kept_at(kept) == ["autocache_source"]
    assert isinstance(kept.plan.ops[0], Autocache) and "source cache:" in kept.notes[0]


def test_files_that_do_not_say_how_many_elements_they_hold_are_judged_by_their_bytes(
    cache: Cache, tmp_path: Path
) -> None:
    """Else so many would be assumed that the cache had room for none of them."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("0123456789\n" * 200)
    pipe = pecan.PecanPipeline(pecan.sources.TextLines(f"{tmp_path}/*.txt")).map(waits).map(large).autocache().batch(4)
    kept = decide(pipe, replace(cache, max_bytes=1 << 30))
    nbytes = next(option.nbytes for option in kept.choices[0].options if option.mode == "full")
    assert 400 * 10**6 < nbytes < 900 * 10**6, "600 elements of 1 MB each"


def test_a_job_warns_of_what_is_random_and_kept_and_of_nothing_that_is_meant(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(pipe: PecanPipeline, reorder: pecan.options.ReorderMode = "safe") -> str:
        config = pecan.Config(cache=cache, order_folder="", reorder=reorder, sample_elements=40, sample_seconds=60.0)
        order = JobOrder(pipe.batch(4).plan, name="ours", engine="python", seed=0, config=config)
        caplog.clear()
        said = order.ordered(skip_bad=False, once=True, job=None).notes
        text = "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        assert all(line.split(": ", 1)[1] in said for line in text.splitlines()), "the report has it too"
        return text

    def slow(noise: Any, **marks: Any) -> PecanPipeline:
        return pecan.PecanPipeline(source()).map(waits).map(noise, **marks)

    def other_each_time(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "r": np.random.random()}

    for noise in (drawn, other_each_time):
        assert f"random operator '{noise.__name__}'" in warned(slow(noise).autocache())
    assert "move it before, or renew" in warned(slow(drawn).autocache(), "off")
    assert not warned(slow(drawn).autocache(refresh=0.2)) and not warned(
        slow(other_each_time, random=False).autocache()
    )
    assert not warned(pecan.PecanPipeline(source()).map(waits).autocache().map(drawn))


def test_each_input_of_a_join_has_its_own_and_a_later_job_finds_the_same_without_a_sample(cache: Cache) -> None:
    one = pecan.PecanPipeline(source()).map(waits).autocache(name="one")
    other = pecan.PecanPipeline(source()).map(large).autocache(name="other").map(small)
    kept = decide(one.concat(other).batch(4), cache)
    assert kept_at(kept) == ["one"] and len(kept.choices) == 2 == len(kept.notes)

    def pipe() -> PecanPipeline:
        return pecan.PecanPipeline(source()).map(waits).autocache().batch(4)

    def no_sample(plan: Plan) -> SampledCosts:
        raise AssertionError("nothing is sampled")

    first = decide(pipe(), cache)
    second = with_kept_points(pipe().plan, no_sample, name="x", engine="python", seed=0, cache=cache, cpus=1)
    assert first.plan.ops[1] == second.plan.ops[1]


def test_keys_stand_for_all_that_is_computed_before(cache: Cache) -> None:
    def key(pipe: PecanPipeline, seed: int = 0) -> str:
        return prefix_key(pipe.plan, "python", seed)

    base = pecan.PecanPipeline(source()).map(waits)
    same = pecan.PecanPipeline(source()).map(waits)
    assert key(base.autocache()) == key(same.autocache())
    others = [
        key(base.autocache(), seed=1),
        key(base.autocache(version="2")),
        key(base.map(large).autocache()),
        key(pecan.PecanPipeline(source()).map(large).autocache()),
        key(pecan.PecanPipeline(pecan.sources.Arrays({"x": np.ones(3)})).map(waits).autocache()),
        key(base.map(lambda v: {**v, "y": 1}).autocache()),
        key(base.map(lambda v: {**v, "y": 2}).autocache()),
    ]
    assert len({key(base.autocache()), *others}) == 1 + len(others)


class Untold:
    """Of which nobody can tell what it holds."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("it cannot be pickled")


def test_what_cannot_be_decided_or_named_is_computed_and_said(cache: Cache) -> None:
    pipe = pecan.PecanPipeline(source()).map(waits).autocache().batch(4)
    assert "cannot be opened" in decide(pipe, Cache("/proc/nowhere")).notes[0]
    bare = pecan.PecanPipeline(source()).autocache().batch(4)
    assert "did not show" in decide(bare, cache).notes[0]
    without = pecan.PecanPipeline(source()).map(waits).batch(4)
    assert decide(without, Cache("/proc/nowhere")) == Kept(without.plan)
    held = Untold(2)
    pipe = pecan.PecanPipeline(source()).map(lambda v: {**v, "y": held.factor}).autocache().batch(4)
    with pytest.raises(PlanError, match="Untold"):
        prefix_key(pipe.plan, "python", 0)
    kept = decide(pipe, cache)
    assert kept_at(kept) == [] and "everything is computed" in kept.notes[0] and "Untold" in kept.notes[0]
    for path, nbytes in (("/tmp", 1), ("s3://bucket/cache", 1 << 30)):
        with pytest.raises(PlanError, match=r"Cache\((max_bytes|path)="):
            Cache(path, nbytes)


def test_the_speed_of_a_folder_is_measured_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        speed = store_speed.store_speed(store)
        assert speed.reading.read_seconds(1 << 20, 8) > 0 and speed.reading.measurements == 15
        assert len(speed.delivery) == len(store_speed.DELIVERED)
        assert speed.delivery_cost(64).per_element_s > 0 and speed.delivery_cost(1 << 20).per_byte_s > 0
        assert store.sizes() == () and store.nbytes == 0, "what it was measured with is gone"
        monkeypatch.setattr(store_speed, "measured_speed", lambda store: None)
        assert store_speed.store_speed(store) == speed
    monkeypatch.undo()
    small = EntryStore(cache.folder / "small", max_bytes=100)
    with small, pytest.raises(CacheError, match="nothing can be"):
        store_speed.store_speed(small)


def test_what_an_epoch_took_corrects_what_later_jobs_are_promised(cache: Cache) -> None:
    pipe = pecan.PecanPipeline(source()).map(waits).autocache().map(small).batch(4)
    kept = decide(pipe, cache)
    assert kept.epoch_estimate is not None and kept.epoch_estimate.seconds == kept.choices[0].seconds
    said = kept.epoch_estimate.correct(0.25)
    assert "an epoch took 0.25 s, where" in said and "later jobs go by what it took" in said
    later = decide(pipe, cache)
    assert kept_at(later) == ["autocache"] and later.choices[0].seconds == pytest.approx(0.25)
    assert decide(pipe, cache, cpus=2).choices[0].seconds != pytest.approx(0.25), "of other CPUs it says nothing"
    assert later.epoch_estimate is not None
    later.epoch_estimate.correct(1e6)
    assert kept_at(decide(pipe, cache)) != ["autocache"], "it is not worth keeping after all"


def test_explain_says_what_would_be_kept_and_why(cache: Cache) -> None:
    config = pecan.Config(cache=cache, order_folder="", sample_elements=40, sample_seconds=60.0)
    pipe = pecan.PecanPipeline(source(), config=config).map(waits).autocache().map(small).batch(4)
    told = [line for line in pipe.explain().splitlines() if "autocache: " in line]
    assert len(told) == 1 and "note: autocache: cache at 'autocache':" in told[0]
    assert "against compute" in told[0] and "source cache" not in told[0].split("against")[0]
    assert "autocache: cache at" in pipe.explain("json")
    plain = pecan.PecanPipeline(source(), config=config).map(waits).batch(4)
    assert "autocache" not in plain.explain()
    frozen = pecan.PecanPipeline(source(), config=config).map(waits).map(drawn).autocache().batch(4)
    assert "stands behind the random operator 'drawn'" in frozen.explain()


def test_a_store_for_all_machines_is_used_where_it_is_sooner_and_what_is_wrong_with_it_said(
    cache: Cache, tmp_path: Path
) -> None:
    def points(remote: Path) -> tuple[list[bool], tuple[str, ...]]:
        made = decide(pecan.PecanPipeline(source()).map(waits).autocache().batch(4), replace(cache, remote=remote))
        return [op.remote for op in made.plan.all_ops() if isinstance(op, Autocache) and op.key], made.notes

    used, said = points(tmp_path / "mounted")
    assert used == [True] and "kept here, and all of it in the remote store" in said[0]
    objects = EntryObjects(str(tmp_path / "mounted"))
    assert [name for name in map(objects.named, objects.entry_types()) if name] == ["ours: autocache behind waits"]
    (tmp_path / "file").write_text("")
    used, said = points(tmp_path / "file" / "below")
    assert used == [False] and said[-1].startswith("autocache: nothing is kept in the remote store: ")


def test_the_command_shows_checks_and_removes_what_is_kept_on_the_disk_in_memory_and_of_buckets(
    cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(cache_options, "SHARED_MEMORY", tmp_path / "shm")
    cache = replace(cache, memory_bytes=MIB, source_bytes=64 * MIB)
    disk, blocks, memory = cache.folder, cache.source_folder, cache.memory_folder

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["cache", "--path", str(disk), *arguments])
        out, err = capsys.readouterr()
        return status, out + err

    def whole(*counts: tuple[int, int]) -> str:
        return "".join(f"{good} entries are whole, {bad} were damaged and are dropped\n" for good, bad in counts)

    nothing = f"pecan: nothing is kept in {disk}. Name the folder by --path, if it is another one.\n"
    assert run("ls") == (2, nothing) and memory is not None
    kept = decide(pecan.PecanPipeline(source()).map(waits).autocache().batch(4), cache)
    point = next(op for op in kept.plan.ops if isinstance(op, Autocache))
    tiers = TieredStore(disk, max_bytes=cache.max_bytes, memory=memory, memory_bytes=cache.memory_bytes)
    with contextlib.closing(tiers):
        tiers.put("one", point.key, [b"1" * 2_000_000], elements=7, seconds=1.5)
        tiers.put("two", "another", [b"2" * 300_000], elements=1, seconds=0.5)
        tiers.get("two")
    data = bytes(2 * MIB + 5)
    with contextlib.closing(BlockCache(blocks, cache.source_bytes)) as of_buckets:
        of_buckets.read(
            lambda start, stop, _: FileRange(data[start:stop], len(data), "v"), "s3://data/x/y", 0, None, "v"
        )
    status, text = run("ls")
    assert status == 0 and "ours: autocache behind waits" in text and "2.0" in text and "another" in text
    assert text.split()[-6:] == ["blocks", "MB", "dataset", "3", "2.1", "s3://data/x"]
    assert run("du") == (0, f"2.3 MB in {disk}\n2.1 MB in {blocks}\n0.3 MB in {memory}\n")
    assert run("verify") == (0, whole((2, 0), (3, 0), (1, 0)))
    assert run("rm")[0] == 2 and run("rm", "--all", "x")[0] == 2
    removed = [line.split()[0] for line in run("rm", "ano")[1].splitlines()]
    assert removed == ["1", "0", "1"]
    for folder, place in ((disk, 0), (blocks, MIB + 100)):
        segment = next((folder / "segments").iterdir())
        held = bytearray(segment.read_bytes())
        held[place] ^= 1
        segment.write_bytes(held)
    assert run("verify") == (1, whole((0, 1), (2, 1), (0, 0)))
    assert "us for an entry" in run("bench")[1]
    assert run("rm", "--all")[0] == 0 and run("du")[1].count("0.0 MB in") == 2 and not memory.exists()
