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
from pecan_ray.job.listing import SourceListing
from pecan_ray.runtime import session
from pecan_ray.runtime.controller_actor import AutoPlacementController
from tests.ray.pipelines import ONE

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
        pipeline(source, dataclasses.replace(CONFIG, journal=None)).iter_batches(workers=ONE)
    assert "the source of job broken-" in str(caught.value)


def test_labels_that_ray_refuses_are_named() -> None:
    config = dataclasses.replace(CONFIG, remote_labels={"role": "not a label!"})
    with (
        pytest.raises(errors.PecanError, match="Ray refuses the labels") as caught,
        pipeline(config=config).iter_batches(workers=pecan.Workers(local=0, remote=1)) as batches,
    ):
        list(batches)
    assert "Config(remote_labels=" in str(caught.value)


class Breaking(AutoPlacementController):
    """A controller that cannot take what a listing has found."""

    async def open(self, job: bytes, arrays: Any) -> None:
        def broken(*_: Any) -> None:
            raise KeyError("broken on purpose")

        listing: Any = SourceListing
        listing._on_split_page = broken
        await super().open(job, arrays)


def train(rank: int) -> str:
    options: dict[str, Any] = {"epochs": None, "rank": rank, "world_size": 2, "job": "broken-for-all"}
    with pytest.raises(errors.ClusterError) as told, pipeline().iter_batches(workers=ONE, **options) as batches:
        list(batches)
    return str(told.value)


def test_what_breaks_in_the_controller_is_raised_by_every_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AutoPlacementController", Breaking)
    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(train, range(2)))
    said = r"broken-for-all: its controller has failed while handling SplitPageReceived.*KeyError: 'broken on purpose'"
    assert all(re.search(said, told) for told in heard), heard
