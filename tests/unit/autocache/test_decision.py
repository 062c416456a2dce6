"""What is kept at autocache points: decided from a sample, written into the plan, told to the user."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
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
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines.entry_objects import NAME
from pecan_ray.errors import CacheError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Autocache, Plan

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


def decide(pipe: PecanPipeline, cache: Cache) -> Kept:
    request = OrderRequest(pipe.plan, elements=40, sample_all=True, mode="off")
    return with_kept_points(
        pipe.plan,
        lambda plan: costs_of(plan, [one.sample for one in order_plan(request).sequences]),
        name="ours",
        engine="python",
        seed=0,
        cache=cache,
        cpus=1,
    )


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


def test_a_sample_shows_what_to_keep_and_a_later_job_finds_it_without_one(cache: Cache) -> None:
    def pipe() -> PecanPipeline:
        return pecan.PecanPipeline(source()).map(waits).autocache().map(small).batch(4)

    def no_sample(plan: Plan) -> SampledCosts:
        raise AssertionError("nothing is sampled")

    first = decide(pipe(), cache)
    assert len(first.notes) == 1 and "cache at 'autocache':" in first.notes[0] and "against compute" in first.notes[0]
    assert [op.name for op in first.plan.all_ops() if isinstance(op, Autocache) and op.key] == ["autocache"]
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
    without = pecan.PecanPipeline(source()).map(waits).batch(4)
    assert decide(without, Cache("/proc/nowhere")) == Kept(without.plan)
    held = Untold(2)
    pipe = pecan.PecanPipeline(source()).map(lambda v: {**v, "y": held.factor}).autocache().batch(4)
    with pytest.raises(PlanError, match="Untold"):
        prefix_key(pipe.plan, "python", 0)
    kept = decide(pipe, cache)
    assert kept.plan == pipe.plan and "everything is computed" in kept.notes[0] and "Untold" in kept.notes[0]
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


def test_a_store_for_all_machines_names_what_it_keeps_and_what_is_wrong_with_it_is_said(
    cache: Cache, tmp_path: Path
) -> None:
    pipe = pecan.PecanPipeline(source()).map(waits).autocache().batch(4)
    decide(pipe, replace(cache, remote=tmp_path / "mounted"))
    names = [folder.read_text() for folder in (tmp_path / "mounted").glob(f"*/{NAME}")]
    assert names == ["ours: autocache behind waits"]
    (tmp_path / "file").write_text("")
    kept = decide(pipe, replace(cache, remote=tmp_path / "file" / "below"))
    assert [op.remote for op in kept.plan.all_ops() if isinstance(op, Autocache) and op.key] == [False]
    assert kept.notes[-1].startswith("autocache: nothing is kept in the remote store: ")
