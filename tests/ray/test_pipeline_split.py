"""The last operators of remote workers, run where their batches arrive: on three raylets, by Flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.workers import ONE_BY_ONE, kill_controller, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 320
SIDE = 64
CUT_ROW = 8 + SIDE * SIDE * 3
"""Bytes of a row as it travels: its number, and pixels of one byte, which are floats of four behind the cut."""
MEANS = np.array([0.25, 0.5, 0.75], np.float32)


def picture(number: Any) -> Any:
    return np.random.default_rng(int(number)).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def to_float(image: Any) -> Any:
    return image.astype(np.float32) / 255


def normalize(image: Any) -> Any:
    return (image - MEANS) / np.float32(0.3)


def pictures(make: Any = picture, **config: Any) -> pecan.PecanPipeline:
    """Photographs as a decoder gives them, as floats, and their numbers."""
    config = {"split_pipeline": "always", "reorder": "off"} | config
    pipe = pecan.PecanPipeline(
        pecan.sources.Arrays(i=np.arange(ROWS), image=np.arange(ROWS)), name="pictures", config=pecan.Config(**config)
    )
    return pipe.map(make, on="image", name="decode").map(to_float, on="image").map(normalize, on="image").batch(16)


def expected(number: int) -> Any:
    return normalize(to_float(picture(number)))


def check(batches: list[Any], epochs: int = 1) -> None:
    """Check that each photograph has come once in each epoch, with the bits that one process gives it."""
    found = sorted(int(i) for batch in batches for i in batch["i"])
    assert found == sorted(list(range(ROWS)) * epochs)
    for batch in batches:
        assert batch["image"].dtype == np.float32
        for i, image in zip(batch["i"], batch["image"], strict=True):
            assert image.tobytes() == expected(int(i)).tobytes()


def told(report: Any) -> str:
    return "\n".join(event.text for event in report.events)


def test_where_a_gigabyte_costs_money_a_pipeline_is_cut_by_itself_and_each_bit_is_as_in_one_process() -> None:
    """A gigabyte that costs more than an hour of a host is worth a cast, whatever the link."""
    prices = pecan.placement.Prices(1.0, 0.5, transfer_per_gb=10.0)
    workers = pecan.AutoWorkers(max_local=0, min_remote=1, max_remote=1, prices=prices)
    with pictures(split_pipeline="auto").iter_batches(workers=workers) as batches:
        kept = list(batches)
        report = batches.report()
    check(kept)
    assert all(batch["image"].flags.writeable for batch in kept)
    assert report.sent_bytes("remote") == ROWS * CUT_ROW and " and $10 for a GB" in told(report)
    assert "to_float, normalize run where batches arrive: a row has 12,288 bytes there and 49,152" in told(report)
    assert f"batches: {report.sent_bytes('remote') / 1e6:,.1f} MB from remote workers, " in str(report)
    assert report.cost is not None
    assert report.cost.transfer == pytest.approx(ROWS * CUT_ROW / 1e9 * 10.0)


def test_a_killed_worker_and_a_killed_controller_change_nothing_about_a_cut(tmp_path: Path) -> None:
    options: dict[str, Any] = {"workers": pecan.Workers(local=0, remote=2), "epochs": 2, "job": "cut"}
    with pictures(journal=tmp_path).iter_batches(**options, **ONE_BY_ONE) as batches:
        kept = [next(batches) for _ in range(3)]
        lose(batches, maker(batches))
        kept += [next(batches) for _ in range(3)]
        kill_controller("cut")
        kept += list(batches)
        report = batches.report()
    check(kept, epochs=2)
    assert report.workers_lost == 1 and report.sent_bytes("remote") == 2 * ROWS * CUT_ROW


def sometimes_wide(number: Any) -> Any:
    image = picture(number)
    return image.astype(np.uint16) if number == ROWS // 2 else image


def test_an_element_of_another_dtype_sends_the_operators_back_to_the_workers() -> None:
    """Bytes and 16-bit numbers become floats before they are batched; as they are they would not fit together."""
    options: dict[str, Any] = {"workers": pecan.Workers(local=0, remote=1), "order": "relaxed", "epochs": 2}
    with pictures(sometimes_wide).iter_batches(**options) as batches:
        check(list(batches), epochs=2)
        report = batches.report()
    assert "to_float, normalize were left to the trainer, but a value is uint16[64, 64, 3]" in told(report)
    assert "it is replaced by one that runs all operators itself" in told(report)
