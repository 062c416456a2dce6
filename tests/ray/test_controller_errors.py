"""Whatever goes wrong in the controller, every trainer raises it: no job hangs or ends short in silence."""

from __future__ import annotations

import dataclasses
import importlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.runtime import session
from pecan_ray.runtime.controller_actor import AutoPlacementController

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

CONFIG = pecan.Config(cpus_per_worker=0.1, reorder="off", journal="off", placement_warning_s=0.1)


def pipeline(source: Any = None, config: pecan.Config = CONFIG) -> pecan.PecanPipeline:
    source = source or pecan.sources.Arrays(i=np.arange(10_000))
    return pecan.PecanPipeline(source, name="broken", config=config).batch(4)


ELSEWHERE = """
import pecan_ray as pecan

class Elsewhere(pecan.sources.Arrays):
    pass
"""


def test_a_source_whose_module_other_processes_lack_is_told_by_the_modules_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = importlib.import_module("only_here").Elsewhere(i=np.arange(8))
    with pytest.raises(errors.ClusterError, match=r"no module 'only_here'.*--working-dir") as caught:
        pipeline(source, dataclasses.replace(CONFIG, journal=None)).iter_batches(workers=pecan.Workers(local=1))
    assert "the source of job broken-" in str(caught.value)


def test_labels_that_ray_refuses_are_named() -> None:
    config = dataclasses.replace(CONFIG, remote_labels={"role": "not a label!"})
    with (
        pytest.raises(errors.PecanError, match="Ray refuses the labels") as caught,
        pipeline(config=config).iter_batches(workers=pecan.Workers(local=0, remote=1)) as batches,
    ):
        list(batches)
    assert "Config(remote_labels=" in str(caught.value)


def breaking(*places: str) -> type[AutoPlacementController]:
    """Return a controller in whose process functions raise, given as module:name."""

    class Breaking(AutoPlacementController):
        async def open(self, job: bytes, arrays: Any) -> None:
            def broken(*arguments: Any, **options: Any) -> Any:
                raise KeyError("broken on purpose")

            for place in places:
                module, name = place.split(":")
                owner: Any = importlib.import_module(f"pecan_ray.{module}")
                *path, last = name.split(".")
                for part in path:
                    owner = getattr(owner, part)
                setattr(owner, last, broken)
            await super().open(job, arrays)

    return Breaking


BROKEN: dict[str, tuple[str, ...]] = {
    "asking other jobs what they bid for workers": ("runtime.pool_request_exchange:other_jobs",),
    "handling SplitPageReceived": ("job.listing:SourceListing._on_split_page",),
    "": ("job.ledger:Ledger.add_splits", "job.state:JobState._refresh_updates"),
}
"""By what the controller was doing, "" where it takes no event any more: which of its functions raise."""


def train(rank: int, ranks: int) -> str:
    options: dict[str, Any] = {"epochs": None, "rank": rank, "world_size": ranks, "job": "broken-for-all"}
    config = dataclasses.replace(CONFIG, trainer_timeout_s=15.0)  # after which such a controller is ended
    try:
        with pipeline(config=config).iter_batches(workers=pecan.Workers(local=1), **options) as batches:
            list(batches)
    except errors.ClusterError as error:
        return str(error)
    return "ended as if well"


@pytest.mark.parametrize("doing", BROKEN)
def test_what_breaks_in_the_controller_is_raised_by_every_trainer(doing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AutoPlacementController", breaking(*BROKEN[doing]))
    ranks = 2 if doing in ("handling SplitPageReceived", "") else 1
    with ThreadPoolExecutor(ranks) as pool:
        heard = list(pool.map(train, range(ranks), [ranks] * ranks))
    said = rf"broken-for-all: its controller has failed while {doing}.*KeyError: 'broken on purpose'"
    assert all(re.search(said, told) for told in heard), heard
