"""Files of tokens, blends of exactly so many elements, and shards that are drawn with replacement."""

from __future__ import annotations

import pickle
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import CorruptSourceError, PlanError
from pecan_ray.sources import Arrays, Blend, Items, Resampled, TextLines, TokenFiles
from pecan_ray.sources.blend import BlendOrder
from tests.source_contract import check_contract
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, missing, run_engine, whole_leases

DOCUMENTS = [list(range(10 * number, 10 * number + number % 7)) for number in range(20)]
ALL = [token for document in DOCUMENTS for token in document]


def write(path: Path, documents: Sequence[Sequence[int]], dtype: Any = np.uint16, code: int = 8) -> Path:
    """Write documents as Megatron's tools do."""
    sizes = np.array([len(one) for one in documents], np.int32)
    places = np.concatenate([[0], np.cumsum(sizes)])[:-1] * np.dtype(dtype).itemsize
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1)
    numbers = sizes.tobytes() + places.astype(np.int64).tobytes() + np.arange(len(sizes) + 1).tobytes()
    path.with_suffix(".idx").write_bytes(header + numbers)
    path.with_suffix(".bin").write_bytes(b"".join(np.array(one, dtype).tobytes() for one in documents))
    return path


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, 8), (np.int32, 4)])
def test_documents_and_windows_are_read_as_they_were_written(tmp_path: Path, dtype: Any, code: int) -> None:
    path = write(tmp_path / "tokens", DOCUMENTS, dtype, code)
    check_contract(TokenFiles(path), [{"tokens": np.array(one, dtype)} for one in DOCUMENTS], splits=20)
    windows = [{"tokens": np.array(ALL[at : at + 9], dtype)} for at in range(0, len(ALL) - 8, 8)]
    check_contract(TokenFiles(f"{path}.bin", 8, split_rows=3), windows, splits=3)
    assert TokenFiles(path, len(ALL)).num_elements() == 0
    shuffled = pecan.PecanPipeline(TokenFiles(path, 8), shuffle=True).iter_batches(debug=True)
    assert sorted(int(one["tokens"][0]) for one in shuffled) == [int(one["tokens"][0]) for one in windows]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", DOCUMENTS)
    index = path.with_suffix(".idx").read_bytes()
    another_type, another_place = index[:17] + b"\x09" + index[18:], index[:34] + b"\x01" * 4 + index[38:]
    for broken in (index[:20], index[:-1], b"X" + index[1:], another_type, another_place):
        path.with_suffix(".idx").write_bytes(broken)
        with pytest.raises(CorruptSourceError, match=r"tokens\.idx is no index"):
            TokenFiles(path).num_elements()
    path.with_suffix(".idx").write_bytes(index)
    path.with_suffix(".bin").write_bytes(b"\0\0\0")
    with pytest.raises(CorruptSourceError, match="have 2 bytes each"):
        TokenFiles(path).num_elements()
    with pytest.raises(PlanError):
        TokenFiles(path, 0)
    write(path, [])
    assert TokenFiles(path, 4).num_elements() == 0


def drawn(source: Any, **options: Any) -> list[tuple[int, int]]:
    """Source and number of the elements that come."""
    batches = pecan.PecanPipeline(source, seed=1).iter_batches(debug=True, first_epoch=0, **options)
    return [(int(one["c"]), int(one["i"])) for one in batches]


def of(c: int, count: int) -> Arrays:
    """Elements that tell their source."""
    return Arrays(c=np.full(count, c), i=np.arange(count))


def test_a_blend_has_exactly_so_many_elements_evenly_in_proportion() -> None:
    spread = BlendOrder((6, 3), weights=(2, 1), samples=9)(epoch=0, seed=0)
    assert spread.tolist() == [5, 7, 1, 4, 8, 3, 2, 6, 0], "for ever: states count on it"
    blend = Blend([of(0, 1000), of(1, 40), of(2, 0)], weights=[0.7, 0.3, 0], samples=333)
    check_contract(blend, elements := list(blend.source.rows_at(blend._pass(0, 0).drawn.indices)), splits=17)
    assert len(elements) == 333
    found = drawn(blend)
    assert Counter(c for c, _ in found) == {0: 233, 1: 100}
    assert all(28 <= sum(c for c, _ in found[at : at + 100]) <= 32 for at in (0, 100, 200))
    assert set(Counter(i for c, i in found if c == 1).values()) == {2, 3}, "2.5 epochs of the small source"
    assert len({i for c, i in found if c == 0}) == 233
    both = drawn(blend, epochs=2)
    assert both[:333] == found and Counter(both[333:]) != Counter(found)


# --- shards that are drawn with replacement -----------------------------------------------------------------------

SHARDS = 8


@pytest.fixture
def lines(tmp_path: Path) -> TextLines:
    """Shards of four lines each, which tell their shard."""
    for shard in range(SHARDS):
        (tmp_path / f"{shard}.txt").write_text(f"{shard}\n" * 4)
    return TextLines(tmp_path)


def shards(pipe: Any, **options: Any) -> list[int]:
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
    assert delivered(produced) == leases.target()
    rest = run_engine(pickle.loads(pickle.dumps(pipe)), leases=missing(leases, produced[::2]))
    assert Counter(column([*produced[::2], *rest], "text")) == Counter(column(produced, "text"))


def test_what_cannot_be_blended_or_drawn_is_refused(lines: TextLines) -> None:
    pipe, two = pecan.PecanPipeline(Resampled(lines)), [of(0, 3), of(1, 3)]
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: Blend(two, weights=[1], samples=3), r"weights=\.\.\."),
        (lambda: Blend(two, weights=[1, -1], samples=3), r"weights=\.\.\."),
        (lambda: Blend(two, weights=[1, 1], samples=0), "samples"),
        (lambda: Blend([of(0, 0), of(1, 3)], weights=[1, 1], samples=3), "source 0 is empty"),
        (lambda: Blend([lines, Items([1])], weights=[1, 1], samples=3), "TextLines cannot"),
        (lambda: Blend(of(0, 3), weights=[1], samples=3), "sources"),  # type: ignore[arg-type]  # a wrong argument, which must be refused
        (lambda: Resampled(lines, weights=[1, 2]), "Resampled"),
        (lambda: Resampled(lines, weights=lambda path: -1), "Resampled"),
        (lambda: Resampled(lines, weights=float), "Resampled"),
        (lambda: Resampled(lines, draws=0), "draws"),
        (lambda: Resampled(Resampled(lines)), "Resampled"),
        (lambda: Resampled(Arrays(i=np.arange(0))), "Resampled"),
        (lambda: Resampled("*.tar"), "Resampled"),  # type: ignore[arg-type]  # a wrong argument, which must be refused
        (pipe.autocache, "sampler"),
        (lambda: pecan.split(pipe, [0.5, 0.5]), "sampler"),
    ]
    for call, said in refused:
        with pytest.raises(PlanError, match=said):
            call()


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
