"""Shards that are drawn with replacement."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.sources import Arrays, Resampled, TextLines
from tests.source_contract import check_contract
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, missing, run_engine, whole_leases

SHARDS = 8


@pytest.fixture
def lines(tmp_path: Path) -> TextLines:
    """Shards of four lines each, which tell their shard."""
    for shard in range(SHARDS):
        (tmp_path / f"{shard}.txt").write_text(f"{shard}\n" * 4)
    return TextLines(tmp_path)


def shards(pipe: Any, **options: Any) -> list[int]:
    """The shards of the elements that come."""
    return [int(one["text"]) for one in pipe.iter_batches(debug=True, first_epoch=0, **options)]


def test_each_pass_draws_shards_anew_and_reads_them_whole(lines: TextLines) -> None:
    pipe = pecan.PecanPipeline(Resampled(lines), seed=1)
    first, second = shards(pipe, epochs=2)[: 4 * SHARDS], shards(pipe, epochs=2)[4 * SHARDS :]
    assert first != second and len(set(first)) < SHARDS
    assert all(len(set(first[place : place + 4])) == 1 for place in range(0, len(first), 4))
    assert shards(pipe.repeat(2))[: 4 * SHARDS] == first
    assert Counter(shards(pipe.repeat(2))[4 * SHARDS :]) not in (Counter(first), Counter(second))
    assert len(shards(pecan.PecanPipeline(Resampled(lines, draws=50)))) == 200


def test_shards_are_drawn_by_their_weights(lines: TextLines) -> None:
    by_path = Resampled(lines, weights=lambda path: 3 if path.endswith("5.txt") else path.endswith("1.txt"), draws=400)
    drawn = Counter(shards(pecan.PecanPipeline(by_path)))
    assert drawn.keys() == {1, 5} and 2 < drawn[5] / drawn[1] < 4.5
    listed = Resampled(lines, weights=[0, 1, 0, 0, 0, 3, 0, 0], draws=400)
    assert Counter(shards(pecan.PecanPipeline(listed))) == drawn and listed.identity() == by_path.identity()
    assert listed.identity() != Resampled(lines, draws=400).identity()


def test_draws_are_delivered_once_and_what_is_missing_by_any_other_worker(lines: TextLines) -> None:
    source = Resampled(lines)
    check_contract(source, list(pecan.PecanPipeline(source).iter_batches(debug=True)), splits=SHARDS)
    pipe = pecan.PecanPipeline(source).batch(3)
    leases = ListedLeases(whole_leases([source], epoch=4))
    produced = run_engine(pipe, leases=leases, threads=3)
    assert delivered(produced) == leases.wanted()
    rest = run_engine(pickle.loads(pickle.dumps(pipe)), leases=missing(leases, produced[::2]))
    assert Counter(column([*produced[::2], *rest], "text")) == Counter(column(produced, "text"))


def test_an_epoch_of_a_fixed_length_is_drawn_without_end(lines: TextLines) -> None:
    pipe = pecan.PecanPipeline(Resampled(lines)).shuffle(10).repeat().batch(16)
    batches = list(pipe.iter_batches(debug=True, epochs=2, epoch_batches=9))
    assert [len(batch["text"]) for batch in batches] == [16] * 18


def test_what_cannot_be_drawn_is_refused(lines: TextLines) -> None:
    pipe = pecan.PecanPipeline(Resampled(lines))
    for refused in (
        lambda: Resampled(lines, weights=[1, 2]),
        lambda: Resampled(lines, weights=lambda path: -1),
        lambda: Resampled(lines, weights=float),
        lambda: Resampled(lines, draws=0),
        lambda: Resampled(Resampled(lines)),
        lambda: Resampled(Arrays(i=np.arange(0))),
        lambda: Resampled("*.tar"),  # type: ignore[arg-type]  # a wrong argument, which must be refused
        pipe.autocache,
        lambda: pecan.split(pipe, [0.5, 0.5]),
    ):
        with pytest.raises(PlanError, match=r"Resampled|draws|sampler"):
            refused()


def test_a_length_that_is_said_counts_where_it_was_not_known() -> None:
    kept = pecan.PecanPipeline(Arrays(i=np.arange(100))).filter(lambda element: element["i"] % 3 == 0)
    with pytest.raises(TypeError):
        len(kept.batch(10))
    pipe = kept.with_length(34).batch(10)
    assert len(pipe) == 4 and len(pipe.repeat(2)) == 7 and len(kept.batch(10).with_length(4)) == 4
    assert len(list(pipe.iter_batches(debug=True))) == 4
    other = pecan.PecanPipeline(Arrays(i=np.arange(10)))
    assert len(kept.with_length(34).concat(other)) == 44
    with pytest.raises(TypeError):
        len(pipe.filter(len))
    with pytest.raises(PlanError):
        kept.with_length(0)
