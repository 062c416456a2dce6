"""Sources that are read by the indices of a sampler, drawn anew in each pass; which can be is in the contract."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import pecan_ray as pecan
from pecan_ray.errors import BatchShapeError, OpError, PlanError, SourceNotFoundError
from pecan_ray.plan.fingerprint import fingerprint
from pecan_ray.plan.splits import Lease
from pecan_ray.sources import Arrays, ByIndex, ImageFolder, Items, TextLines
from tests.source_contract import check_contract
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, missing, run_engine, whole_leases

ROWS = 50
Pipe = pecan.PecanPipeline


class Squares(Dataset[Any]):
    """A map-style data set."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        return {"i": index, "row": np.arange(index % 3)}


class Several(Squares):
    """One that gives several samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def repeated(epoch: int, seed: int) -> Any:
    """Some indices, some of them again, in another order in each epoch."""
    return np.random.default_rng((seed, epoch)).choice(ROWS, 70)


def only_i(element: Any) -> Any:
    """An element without the column of unequal lengths."""
    return {"i": element["i"]}


def flat(batches: list[list[int]]) -> list[int]:
    return [i for batch in batches for i in batch]


def by_tokens(epoch: int, seed: int) -> Any:
    """Batches of unequal sizes, in each epoch another number of them."""
    order = np.random.default_rng((seed, epoch)).permutation(ROWS)
    cuts = np.flatnonzero(np.random.default_rng((seed, epoch, 1)).random(ROWS - 1) < 0.3) + 1
    return np.split(order, cuts)


def debugged(pipe: Any, epochs: int = 2, **options: Any) -> list[list[int]]:
    """The column i of the batches of some epochs."""
    batches = pipe.iter_batches(debug=True, epochs=epochs, first_epoch=0, **options)
    return [[int(i) for i in np.ravel(batch["i"])] for batch in batches]


SOURCES: dict[str, Any] = {
    "one by one": lambda **given: Pipe.from_torch_dataset(Squares(), **given),
    "several": lambda **given: Pipe.from_torch_dataset(Several(), **given),
    "arrays": lambda **given: Pipe(Arrays(i=np.arange(ROWS)), **given),
    "items": lambda seed=0, **given: Pipe(ByIndex(Items([{"i": i} for i in range(ROWS)]), **given), seed=seed),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_elements_come_in_the_sequence_of_each_epoch(make: Any) -> None:
    pipe = make(sampler=repeated, seed=3)
    assert flat(debugged(pipe.map(only_i).batch(8))) == [int(i) for epoch in (0, 1) for i in repeated(epoch, 3)]
    assert len(pipe) == 70 and len(pipe.batch(8)) == 9
    both = pipe.map(only_i).repeat(2).batch(70)
    first, second = debugged(both, epochs=1)
    assert first == repeated(0, 3).tolist() and sorted(second) != sorted(first), "a pass of a repeat is one of its own"


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_each_place_is_delivered_once_and_what_is_missing_by_any_other_worker(make: Any) -> None:
    pipe = make(sampler=repeated).map(only_i).batch(8)
    leases = ListedLeases(whole_leases(list(pipe.plan.sources()), epoch=4))
    produced = run_engine(pipe, leases=leases, threads=3)
    assert Counter(column(produced, "i")) == Counter(repeated(4, 0).tolist())
    assert delivered(produced) == leases.target()
    rest = run_engine(pickle.loads(pickle.dumps(pipe)), leases=missing(leases, produced[::2]))
    assert Counter(column([*produced[::2], *rest], "i")) == Counter(repeated(4, 0).tolist())


def test_shuffle_and_weights_draw_indices() -> None:
    pipe = SOURCES["one by one"](shuffle=True).map(only_i).batch(ROWS)
    first, second = debugged(pipe)
    assert sorted(first) == sorted(second) == [*range(ROWS)] and first != second != [*range(ROWS)]
    assert debugged(pipe) == [first, second]
    weights = np.where(np.arange(ROWS) % 2, 3.0, 0)
    weights[-1] = 0
    drawn = flat(debugged(SOURCES["items"](weights=weights).batch(ROWS), epochs=40))
    assert len(drawn) == 40 * ROWS and set(drawn) == {*range(1, ROWS - 1, 2)}
    assert max(Counter(drawn).values()) < 2 * 40 * ROWS / 24


OF_TORCH: dict[str, Any] = {
    "random": lambda: RandomSampler(Squares()),
    "with a generator": lambda: RandomSampler(Squares(), generator=torch.Generator().manual_seed(5)),
    "weighted": lambda: WeightedRandomSampler([1.0] * ROWS, 30),
    "subset": lambda: SubsetRandomSampler(range(10, 30)),
    "one rank": lambda: DistributedSampler(Squares(), num_replicas=1, rank=0),
    "list": lambda: list(range(0, ROWS, 2)),
}


@pytest.mark.parametrize("kind", OF_TORCH)
def test_samplers_of_torch_draw_what_belongs_to_seed_and_epoch(kind: str) -> None:
    sampler = OF_TORCH[kind]
    first, second = debugged(SOURCES["items"](sampler=sampler(), seed=7).batch(ROWS))
    assert (first == second) == (kind == "list")
    expected = list(sampler())
    assert len(first) == len(expected) and (len(set(first)) < len(first) or Counter(first) == Counter(expected))
    again = pickle.loads(pickle.dumps(SOURCES["items"](sampler=sampler(), seed=7)))
    assert debugged(again.batch(ROWS)) == [first, second]


def test_a_batch_sampler_gives_whole_batches() -> None:
    pipe = Pipe.from_torch_dataset(
        Squares(), batch_sampler=by_tokens, collate=lambda rows: {"i": [r["i"] for r in rows]}
    )
    wanted = [[batch.tolist() for batch in by_tokens(epoch, 0)] for epoch in range(3)]
    assert len({len(one) for one in wanted}) > 1
    assert debugged(pipe, epochs=3) == [batch for epoch in wanted for batch in epoch]
    with pytest.raises(TypeError):
        len(pipe)
    sources = list(pipe.plan.sources())
    assert isinstance(sources[0], ByIndex) and not sources[0].counts_splits, "an epoch may have more batches"
    leases = ListedLeases(whole_leases(sources, epoch=2))
    produced = run_engine(pipe, leases=leases, threads=3)
    assert sorted(one.columns["i"] for one in produced if one.rows) == sorted(wanted[2])
    assert delivered(produced) == leases.target()
    told = BatchSampler(Seeded(), ROWS, drop_last=False)  # the sampler in it is told the epoch
    orders = [np.random.default_rng(epoch).permutation(ROWS).tolist() for epoch in (0, 1)]
    assert debugged(SOURCES["arrays"](batch_sampler=told)) == orders


def test_batches_of_a_batch_sampler_are_stacked() -> None:
    sampler = BatchSampler(SequentialSampler(range(ROWS)), 4, drop_last=False)
    pipe = Pipe.from_torch_dataset(Several(), batch_sampler=sampler)
    assert len(pipe) == 13
    with pytest.raises(OpError, match=r"column 'row' of sample 1 of the batch is .* batch\(n, collate=fn\)") as raised:
        run_engine(pipe, order="strict")
    assert isinstance(raised.value.__cause__, BatchShapeError)
    (batch, *_) = Pipe.from_torch_dataset([{"x": np.zeros(2)}] * 9, batch_sampler=[[0, 1, 2]]).iter_batches(debug=True)
    assert batch["x"].shape == (3, 2)


class Seeded(Sampler[int]):
    """A sampler that is told the epoch."""

    def __init__(self, generator: Any = None) -> None:
        self.generator, self.epoch = generator, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        draws = self.generator if isinstance(self.generator, np.random.Generator) else np.random.default_rng(self.epoch)
        return iter(draws.permutation(ROWS).tolist())


def test_it_keeps_the_contract_of_sources_and_is_told_apart_by_its_sampler() -> None:
    source = ByIndex(Arrays(i=np.arange(ROWS)), sampler=repeated)
    check_contract(source, [{"i": np.int64(i)} for i in repeated(0, 0)], splits=18)
    read, split = source.with_seed(9), next(iter(source.splits()))
    assert source.of_lease(Lease(3, split)).identity() == source.identity()
    batches = ByIndex(Arrays(i=np.arange(ROWS), split_rows=1), batch_sampler=[[0, 1]] * 20)
    assert len(list(batches.splits())) == len(list(ByIndex(Items(range(20)), shuffle=True).splits()))
    assert len(list(ByIndex(Arrays(i=np.arange(ROWS), split_rows=2), shuffle=True).splits())) == 25
    assert [one["i"] for one in read.of_lease(Lease(3, split)).read(split, 1)] == repeated(3, 9)[1:4].tolist()
    same = ByIndex(Arrays(i=np.arange(ROWS)), sampler=repeated)
    other = ByIndex(Arrays(i=np.arange(ROWS)), sampler=lambda epoch, seed: repeated(epoch, seed)[::-1])
    assert read.identity() == source.identity() == same.identity() != other.identity()
    assert fingerprint(Pipe(source).plan) == fingerprint(Pipe(same).plan) != fingerprint(Pipe(other).plan)


def test_files_are_listed_once_and_one_that_cannot_be_read_is_left_out_alone(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in range(ROWS):
        (tmp_path / "0" / f"{number:03}.png").write_bytes(b"image")
    pipe = pecan.PecanPipeline(ImageFolder(tmp_path, split_files=7), shuffle=True)
    assert len(pipe) == ROWS
    (tmp_path / "0" / "000.png").rename(tmp_path / "0" / "added.png")
    with pytest.raises(SourceNotFoundError, match=r"000\.png"):
        run_engine(pipe.batch(5))
    assert len(column(run_engine(pipe.batch(5), on_error="skip"), "label")) == ROWS - 1


# --- what is refused -------------------------------------------------------------------------------------------

OTHER_RANKS: Any = DistributedSampler(Squares(), num_replicas=2, rank=0)
ENDLESS: Any = type("Endless", (), {"__iter__": lambda self: cycle(range(ROWS))})()
"""Goes on after an epoch, as samplers of training loops that count steps do."""
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sampler": repeated, "shuffle": True}, r"needs one of .* but got sampler and shuffle"),
    ({}, r"but got none"),
    ({"sampler": 3}, r"ByIndex\(sampler=\.\.\.\) needs a function of epoch and seed"),
    ({"sampler": iter([1])}, r"can be gone through only once"),
    ({"sampler": lambda epoch, seed: np.random.permutation(9)}, r"other indices for epoch 0"),
    ({"sampler": lambda epoch, seed: np.ones(9, bool)}, r"gave for epoch 0 bool\[9\]"),
    ({"sampler": lambda epoch, seed: [0, ROWS]}, r"the index 50, but there are 50 elements"),
    ({"sampler": lambda epoch, seed: [0, -1]}, r"the index -1"),
    ({"sampler": lambda epoch, seed: None}, r"failed in epoch 0: TypeError: it returned NoneType"),
    ({"sampler": ENDLESS}, r"more than 10,001,000 indices for epoch 0, and goes on"),
    ({"batch_sampler": lambda epoch, seed: ([i % 9] for i in count())}, r"and goes on"),
    ({"sampler": lambda epoch: [1]}, r"failed in epoch 0: TypeError"),
    ({"sampler": lambda epoch, seed: [[0, 1], [2, 3]]}, r"int64\[2, 2\], but it must give indices"),
    ({"batch_sampler": lambda epoch, seed: [1, 2]}, r"int, in the place of the indices of a batch"),
    ({"batch_sampler": lambda epoch, seed: [[1], []]}, r"batch 1 of epoch 0 is empty"),
    ({"sampler": OTHER_RANKS}, r"deals indices to ranks"),
    ({"batch_sampler": BatchSampler(OTHER_RANKS, 5, drop_last=False)}, r"deals indices to ranks"),
    ({"sampler": Seeded(np.random.default_rng(0))}, r"other indices for epoch 0"),
    ({"shuffle": "no"}, r"ByIndex\(shuffle=\.\.\.\)"),
    ({"weights": [1, 2]}, r"each of the 50 elements.*got float64\[2\]"),
    ({"weights": [1] * 49 + [float("nan")]}, r"got nan at place 49"),
    ({"weights": [0] * ROWS}, r"of which one is positive"),
    ({"weights": ["a"]}, r"needs a number for each element"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_is_no_sampler_is_refused_at_once(given: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        ByIndex(Arrays(i=np.arange(ROWS)), **given)


def test_what_cannot_hold_over_places_or_be_read_by_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    rows, pipe = Arrays(i=np.arange(3)), SOURCES["arrays"](shuffle=True)
    mismatches = SOURCES["items"](sampler=lambda epoch, seed: range(5 if epoch < 2 else 6)).batch(2)
    calls: list[tuple[Callable[[], object], str]] = [
        (pipe.autocache, "a sampler gives each split other elements in each epoch"),
        (lambda: pecan.split(pipe, [0.5, 0.5]), "a sampler gives each place another element"),
        (lambda: debugged(mismatches, epochs=3), "gave 6 indices for epoch 2, and 5 for the first ones"),
        (
            lambda: Pipe(TextLines(tmp_path / "a.txt"), shuffle=True),
            r"shuffle=\.\.\.\) reads by indices, which TextLines",
        ),
        (lambda: Arrays(i=np.arange(3), shuffle=True), r"PecanPipeline\(Arrays\(\.\.\.\), shuffle=\.\.\.\)"),
        (lambda: Pipe(rows, collate=len), "needs a batch_sampler"),
        (lambda: Pipe(rows, batch_sampler=[[0]], engine="tensorflow"), "gives the tensorflow engine no batches"),
    ]
    for call, said in calls:
        with pytest.raises(PlanError, match=said):
            call()
