"""Who may share with whom, and what is refused; without Ray."""

from __future__ import annotations

import asyncio
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.job.share_group import Place, ReaderStats
from pecan_ray.observe.report import Report, SharedReading
from pecan_ray.observe.status_command import group_lines
from pecan_ray.options import IterOptions
from pecan_ray.runtime.share_host import difference
from pecan_ray.runtime.share_messages import EndFrame, GroupStats, NoticeFrame
from pecan_ray.runtime.share_readers import GroupReader, PipeReader, StoreReader, lost_readers
from pecan_ray.sharing import group_parts

SHARES = IterOptions(share=True, visitation="at_most_once")


def pipe_of(factor: int = 2, count: int = 10, name: str = "numbers") -> pecan.PecanPipeline:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(count)), name=name)
    return pipe.map(lambda value: {"i": factor * value["i"]}, name="times").batch(4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"share": ""}, "share must be True, False or the name of a group, but got ''"),
        ({"share": 3}, "share must be True or False or a text, but got 3"),
        ({"max_lag": 3}, "max_lag=3 bounds how far readers of a shared group lag: pass share=True"),
        ({"share": True, "max_lag": 0}, "max_lag must be at least 1 (or None), but got 0"),
        ({"share": True, "visitation": "exactly_once"}, 'which visitation="exactly_once" forbids: pass max_lag=...'),
        (
            {"share": True, "rank": 0, "world_size": 2, "job": "trial"},
            "share=True with world_size=2 needs max_lag=...",
        ),
        ({"share": True, "rank": 0, "world_size": 2, "max_lag": 2}, "and job=..., a name of their trial"),
        ({"share": True, "job": "mine"}, "share=True does not go with job='mine'"),
        ({"share": True, "sharding": "off"}, "share=True does not go with sharding='off'"),
        ({"share": True, "state": {}}, "state"),
        ({"share": True, "on_error": "quarantine"}, 'name the file by a whole path, Config(quarantine_path="/...")'),
    ],
)
def test_what_a_reader_cannot_have_is_refused_before_anything_starts(options: dict[str, Any], says: str) -> None:
    with pytest.raises(pecan.errors.PecanError, match=re.escape(says)):
        pipe_of().iter_batches(**options)


def test_equal_pipelines_share_whatever_their_names_and_sizes_but_not_in_debug_mode() -> None:
    batches = pipe_of().iter_batches(share=True, debug=True)
    assert [int(i) for batch in batches for i in batch["i"]] == [2 * i for i in range(10)]
    one = group_parts(pipe_of().plan, "python", 0, SHARES)
    other = IterOptions(share="x", epochs=None, format="torch", prefetch_bytes=5, visitation="at_most_once")
    assert one == group_parts(pipe_of(name="other").plan, "python", 0, other)
    assert difference(one, one) == ""


@pytest.mark.parametrize(
    ("plan", "engine", "seed", "options", "says"),
    [
        (pipe_of(3).plan, "python", 0, SHARES, "operator times"),
        (pipe_of(count=11).plan, "python", 0, SHARES, "source Arrays"),
        (pipe_of().plan, "tensorflow", 0, SHARES, "engine python where this one has engine tensorflow"),
        (pipe_of().plan, "python", 1, SHARES, "seed 0 where this one has seed 1"),
        (pipe_of().plan, "python", 0, IterOptions(share=True, max_lag=2), "max_lag"),
        (pipe_of().plan, "python", 0, IterOptions(share=True, max_lag=2, on_error="skip"), "on_error"),
        (pipe_of().unbatch().plan, "python", 0, SHARES, "no operator unbatch where this one has operator unbatch"),
    ],
)
def test_what_differs_is_named(plan: Any, engine: Any, seed: int, options: IterOptions, says: str) -> None:
    mine = group_parts(pipe_of().plan, "python", 0, SHARES)
    assert says in difference(mine, group_parts(plan, engine, seed, options))


def test_a_file_that_has_changed_is_another_data_set_and_what_nothing_stands_for_is_not_shared(tmp_path: Path) -> None:
    def parts() -> Any:
        pipe = pecan.PecanPipeline(pecan.sources.TextLines(tmp_path / "lines.txt")).batch(2)
        return group_parts(pipe.plan, "python", 0, SHARES)

    (tmp_path / "lines.txt").write_text("a\nb\n")
    before = parts()
    assert parts() == before
    (tmp_path / "lines.txt").write_text("a\nb\nc\n")
    assert "data of source 1" in difference(before, parts())
    held = threading.Lock()
    with pytest.raises(PlanError, match=r"nothing stands for a .*lock"):
        group_parts(pipe_of().map(lambda batch: (held, batch)[1]).plan, "python", 0, SHARES)


@pytest.mark.parametrize(("exists", "lost"), [(True, []), (False, ["one"]), (None, ["one"])])
@pytest.mark.parametrize("by_pipe", [False, True])
def test_a_reader_whose_process_exists_is_waited_for(exists: bool | None, lost: list[str], by_pipe: bool) -> None:
    asked: list[str] = []

    def process_exists(name: str) -> bool | None:
        asked.append(name)
        return exists

    async def look_twice() -> list[list[str]]:
        reader: GroupReader = StoreReader(lambda _: None, timeout_s=60.0)
        if by_pipe:
            reader = PipeReader(lambda _: None, lambda: None, lambda: None)
        later = time.monotonic() + 70.0
        found = [await lost_readers({"one": reader}, now, process_exists) for now in (later, later + 1.0)]
        reader.close()
        return found

    assert asyncio.run(look_twice()) == [lost, lost]
    assert asked == ["one"] * (1 if exists else 2), "once it is waited for, it has as much time again"


def test_a_notice_costs_a_reader_that_asks_by_calls_no_entry() -> None:
    asked: list[int] = []

    async def notify() -> list[Any]:
        reader = StoreReader(asked.append, timeout_s=60.0)
        reader.notify("nobody has asked")
        first = asyncio.ensure_future(reader.take())
        await asyncio.sleep(0)
        reader.notify("others wait")
        answers = [await first]
        again = asyncio.ensure_future(reader.take())
        await asyncio.sleep(0)
        reader.finish(EndFrame(0, left_behind="they went on"))
        return [pickle.loads(frame) for frame, _ in (*answers, await again)]

    assert asyncio.run(notify()) == [NoticeFrame("others wait"), EndFrame(0, left_behind="they went on")]
    assert asked == [1], "one entry, though it has called twice"


def test_status_tells_of_a_group_and_a_report_of_a_reader() -> None:
    readers, held = (ReaderStats("r1", 7, 2, 1), ReaderStats("r2", waiting=True)), (("r1", 61.0),)
    run = Report("j", 1.0, 9, 36)
    facts = GroupStats("g", "numbers", "abcd", "0123456789", Place(3, 4), readers, 2_000_000, 5, run, held)
    head, *others = group_lines(facts)
    assert head.startswith("shared group g: pipeline numbers (abcd) on node 0123456789, 2 readers, epoch 3, ")
    assert head.endswith("5 batches of 2.0 MB in its window")
    assert others == [
        "  its run j: 9 batches by 0 worker(s)",
        "  reader r1: 7 read, 2 skipped, 1 behind, others have waited 61 s for it",
        "  reader r2: waits for the next epoch, 0 behind",
    ]
    told = str(Report("a reader", 1.0, 7, 28, shared=SharedReading("g", 7, 2, 2, held)))
    assert "the readers of the group have waited 61 s for r1" in told
    assert "it read 7 batches and skipped 2; 2 readers share the workers" in told
