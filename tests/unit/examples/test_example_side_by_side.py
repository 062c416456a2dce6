"""The demonstration's table and plot."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2")

from examples.photographs import derived_photographs
from examples.resnet50 import pipeline
from examples.side_by_side import TimedLoop, bars, plain_batches, svg, table, timed

LOOPS = [TimedLoop("plain loop", 600, 0.5, 6.0, 2.0), TimedLoop("pecan_ray", 600, 3.0, 0.0, 2.0)]


def test_the_table_bars_and_picture_show_rates_waiting_and_times() -> None:
    head, plain, ours = table(LOOPS).splitlines()
    assert head.split() == ["images/s", "waiting", "time", "first", "batch"]
    assert plain.split() == ["plain", "loop", "75", "75%", "8.0s", "0.5s"]
    assert ours.split() == ["pecan_ray", "300", "0%", "2.0s", "3.0s"]
    plain, ours, _ = bars(LOOPS).splitlines()
    assert (plain.count("#"), plain.count("."), ours.count("#"), ours.count(".")) == (10, 30, 10, 0)
    root = ET.fromstring(svg(LOOPS, "4.0 times as fast"))
    names = [child.tag.rpartition("}")[2] for child in root.iter()]
    assert names.count("rect") == 6 and "title" in names and "desc" in names


def test_nothing_is_waited_for_where_batches_lie_ready() -> None:
    def ready() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            yield {"image": np.zeros((4, 2, 2, 3))}

    loop = timed("ready", ready(), 0.05)
    assert loop.images == 8 and loop.trained_s >= 0.1


def test_the_plain_loop_makes_what_the_pipeline_makes(tmp_path: Path) -> None:
    root = derived_photographs(12, cache=tmp_path)
    mine = list(plain_batches(Path(root), 4, 1))
    theirs = list(pipeline(root, batch=4).iter_batches(debug=True))
    assert [{k: (v.dtype, v.shape) for k, v in one.items()} for one in mine] == [
        {k: (v.dtype, v.shape) for k, v in one.items()} for one in theirs
    ]
    assert sum(one["label"].sum() for one in mine) == sum(one["label"].sum() for one in theirs) == 12
