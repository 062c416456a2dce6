"""One batch again and again: as often as a run has batches, in every format, and never taken for a run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.job.bottleneck import RunNumbers, bottleneck
from pecan_ray.job.run_time import RunTime


def numbers(**config: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(
        pecan.sources.Arrays(i=np.arange(100)), name="numbers", config=pecan.Config(**config)
    ).batch(8)


def test_one_batch_comes_as_often_as_a_run_has_batches() -> None:
    batches = list(numbers().iter_batches(epochs=2, headspace=True))
    assert len(batches) == 2 * 13 and all(batch is batches[0] for batch in batches)
    assert batches[0]["i"].tolist() == list(range(8))
    assert len(list(numbers().iter_batches(headspace=True, rank=1, world_size=2))) == 7, "its part of them"
    assert len(list(numbers().iter_batches(headspace=40))) == 40
    assert len(list(islice(numbers().iter_batches(headspace=3, epochs=None), 50))) == 50


@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_every_format_has_it_and_is_converted_once(format: Any) -> None:
    pytest.importorskip(format)
    first, *others = numbers().iter_batches(headspace=True, format=format)
    plain = next(numbers().iter_batches(debug=True, format=format))
    assert type(first["i"]) is type(plain["i"]) and all(other["i"] is first["i"] for other in others)


def test_it_is_no_run_and_the_report_tells_the_loops_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with numbers(report_folder=tmp_path).iter_batches(headspace=True) as batches:
        list(batches)
        report = batches.report()
        with pytest.raises(PlanError, match="no state in debug mode, and none of headspace"):
            batches.state_dict()
    assert report.bottleneck is not None and report.bottleneck.kind == "headspace"
    assert (report.batches, report.elements, report.epochs) == (13, 13 * 8, 1)
    assert "numbers (headspace: one batch again and again): 13 batches" in str(report)
    assert "no run, but one batch 13 times" in str(report)
    assert "this is no run" in caplog.text and list(tmp_path.iterdir()) == []
    told = bottleneck(RunNumbers(RunTime(first_batch_s=9, trained_s=2), 100, in_process=True, headspace=True))
    assert "20.00 ms for a batch (50.0 batches/s)" in told.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.iter_batches(headspace=0), "headspace must be True, False or batches of an epoch >= 1, but got 0"),
        (lambda p: p.iter_batches(headspace="yes"), "headspace must be True or False or a whole number, but got 'yes'"),
        (lambda p: p.unbatch().iter_batches(headspace=True), "is not known without reading the data: say how many"),
        (lambda p: p.iter_batches(headspace=True, state={}), "headspace cannot go on from a state"),
        (lambda p: list(p.filter(lambda i: False, on="i").iter_batches(headspace=3)), "the pipeline yields nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        call(numbers())
