"""Batches of which a worker sends some rows apart."""

from __future__ import annotations

import numpy as np

from pecan_ray.engines.contract import Produced
from pecan_ray.runtime.worker import copy_of_rows


def test_rows_that_are_sent_apart_are_copies_of_those_of_the_batch() -> None:
    x = np.arange(8.0).reshape(4, 2)
    columns = {"x": x, "s": np.array(["a", "bc", "d", "e"]), "n": {"y": np.arange(4)}}
    ragged = np.empty(4, object)
    ragged[:] = [np.arange(n) for n in range(4)]
    whole = Produced({**columns, "r": ragged}, {(0, 0, 0): [(0, 4)]}, 4, 3)
    parts = [copy_of_rows(whole, 0, 1), copy_of_rows(whole, 1, 4)]
    x[:] = -1.0  # the memory of the batch is used again
    assert [(one.rows, one.epoch) for one in parts] == [(1, 3), (3, 3)]
    assert [one.columns["x"].tolist() for one in parts] == [[[0, 1]], [[2, 3], [4, 5], [6, 7]]]
    assert [one.columns["s"].tolist() for one in parts] == [["a"], ["bc", "d", "e"]]
    assert [one.columns["n"]["y"].tolist() for one in parts] == [[0], [1, 2, 3]]
    assert [[len(row) for row in one.columns["r"]] for one in parts] == [[0], [1, 2, 3]]
