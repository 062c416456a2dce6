"""Two sources zipped, as FixMatch does, on several workers: every pair once, in order, whatever dies or is cut off."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.workers import ONE_BY_ONE, lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS, LABELLED = 400, 30


def again(epoch: int, seed: int) -> Any:
    return np.random.default_rng((seed, epoch)).integers(0, LABELLED, ROWS)


def fixmatch(name: str, made: str) -> pecan.PecanPipeline:
    """Unlabelled images beside labelled ones, which come again and again; `made`: a file that lists what is made."""

    def weak_and_strong(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        with open(made, "a") as file:
            file.write(f"{element['u']}\n")
        return {"u": element["u"], "weak": rng.integers(1000), "strong": rng.integers(1000)}

    def weak(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"label": element["label"], "image": rng.integers(1000)}

    labelled = pecan.PecanPipeline(pecan.sources.Arrays(label=np.arange(LABELLED)), sampler=again).map(weak)
    source = pecan.sources.Arrays(u=np.arange(ROWS), split_rows=30)
    unlabelled = pecan.PecanPipeline(source, shuffle=True, name=name, seed=5).map(weak_and_strong)
    return unlabelled.zip(labelled).batch(4)


def rows_of(batches: Any) -> list[tuple[int, ...]]:
    return [row for batch in batches for row in zip(*(batch[name].tolist() for name in sorted(batch)), strict=True)]


def test_workers_share_a_zip_in_order_and_two_ranks_go_on_from_a_state_where_it_was_taken(tmp_path: Any) -> None:
    made = str(tmp_path / "made")
    whole = rows_of(fixmatch("fixmatch", made).iter_batches(debug=True))
    first, workers = [], set()
    options: dict[str, Any] = {"workers": pecan.Workers(local=1, remote=1), **ONE_BY_ONE}
    with fixmatch("fixmatch", made).iter_batches(**options) as batches:
        for batch in batches:
            assert batches.provenance is not None
            workers.add(batches.provenance.worker)
            first.append(batch)
            if len(first) == 10:
                lose(batches, batches.provenance.worker)
            if len(first) == 60:
                assert "rows come in the order of the source" in batches.explain()
                state = batches.state_dict()
                break
    assert len(workers) > 1 and rows_of(first) == whole[:240]
    os.remove(made)

    def rest(rank: int) -> list[list[tuple[int, ...]]]:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "zip-ranks", "workers": pecan.Workers(local=2)}
        with fixmatch("fixmatch", made).iter_batches(state=state, **options) as batches:
            assert "rank r of 2 gets batches r, r + 2" in batches.explain()
            return [rows_of([batch]) for batch in batches]

    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(rest, range(2))
    assert [row for turn in zip(ours, theirs, strict=True) for batch in turn for row in batch] == whole[240:]
    columns = sorted(("u", "weak", "strong", "label", "image"))
    used = {row[columns.index("u")] for row in whole[:240]}
    with open(made) as file:
        assert not used & set(map(int, file)), "nothing that was used is made again"
