"""What runs of row groups of Parquet files need, told by footers, and which of it a node has: on a real S3 server."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray import storage
from pecan_ray.caching.store import EntryStore
from pecan_ray.options import MIB, Cache
from pecan_ray.plan.splits import Split
from pecan_ray.sources import Parquet, parquet_footers
from pecan_ray.sources.files import on_node
from pecan_ray.sources.parquet_footers import FileRanges, KnownFiles, in_blocks, ranges_of_file
from pecan_ray.storage.company import Company
from tests.flaky_http import FlakyProxy

BLOCK = 64 << 10
"""Of tests that need many; Arrow reads on over holes of 8 KiB."""
ROWS, GROUPS, FILES = 256, 6, 3


def blocks_of(ranges: list[tuple[int, int]], size: int = BLOCK) -> list[int]:
    return [block for start, stop in ranges for block in range(start // size, -(-stop // size))]


def table(seed: int, rows: int, row_bytes: int) -> pa.Table:
    """Return columns of which one is nested, one has a dictionary, and one is long; none can be packed."""
    draw = np.random.default_rng(seed)
    words = np.array([draw.bytes(2000).hex() for _ in range(40)])
    return pa.table(
        {
            "number": draw.integers(0, 1 << 62, rows),
            "word": pa.array(words[draw.integers(0, len(words), rows)]).dictionary_encode(),
            "inner": pa.array([{"a": value, "b": [value, value]} for value in draw.random(rows)]),
            "data": pa.array([draw.bytes(row_bytes) for _ in range(rows)]),
        }
    )


def written(seed: int = 0, rows: int = ROWS, groups: int = GROUPS, row_bytes: int = 1200) -> bytes:
    """Return a Parquet file of some row groups."""
    file = io.BytesIO()
    pq.write_table(table(seed, rows * groups, row_bytes), file, row_group_size=rows, compression="none")
    return file.getvalue()


class NotedReads(io.BytesIO):
    """A file that notes what is read of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.ranges: list[tuple[int, int]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        start = self.tell()
        data = super().read(size)
        self.ranges.append((start, start + len(data)))
        return data


@pytest.mark.parametrize("seed", range(20))
def test_joined_ranges_touch_the_same_blocks_each_of_them_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_footers, "BLOCK_BYTES", 10)
    chance = random.Random(seed)
    starts = [chance.randrange(400) for _ in range(chance.randrange(30))]
    ranges = [(start, start + chance.randrange(40)) for start in starts]
    joined = list(in_blocks(ranges))
    found = blocks_of(joined, 10)
    assert found == sorted(set(blocks_of([one for one in ranges if one[0] < one[1]], 10)))
    assert all(after[0] // 10 > -(-before[1] // 10) for before, after in itertools.pairwise(joined))


@pytest.mark.parametrize("columns", [None, ["number"], ["word"], ["inner"], ["inner.b", "number"], ["data", "word"]])
@pytest.mark.parametrize("groups", [(0,), (2, 3), (GROUPS - 1,)])
def test_what_is_told_of_a_run_is_what_reading_it_reads(
    columns: list[str] | None, groups: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_footers, "BLOCK_BYTES", BLOCK)
    data = written()
    footer = pq.read_metadata(io.BytesIO(data))
    told = ranges_of_file(footer, len(data), columns).of(groups)
    file = NotedReads(data)
    reader = pq.ParquetFile(file, metadata=footer, pre_buffer=True)
    read = reader.iter_batches(100, row_groups=groups, columns=columns)
    assert sum(batch.num_rows for batch in read) == ROWS * len(groups)
    assert blocks_of(told) == sorted({*blocks_of(file.ranges)})


def test_of_what_no_footer_tells_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(groups=2)
    footer = pq.read_metadata(io.BytesIO(data))
    whole = ranges_of_file(footer, len(data), None)
    assert whole.groups == 2 and whole.of((1,)) and whole.of((1, 2)) == [] and whole.of((-1,)) == []
    assert ranges_of_file(footer, len(data), ["none such"]).of((0,)) == []
    assert ranges_of_file(footer, 100, None).groups == 0, "its columns lie behind its end"
    monkeypatch.setattr(parquet_footers, "MOST_CHUNKS", 2 * footer.num_columns - 1)
    assert ranges_of_file(footer, len(data), None).groups == 0
    assert ranges_of_file(footer, len(data), ["data"]).groups == 2


def test_the_files_that_were_used_last_are_known() -> None:
    known, one = KnownFiles(1000), FileRanges([[(0, 10)], [(10, 20)]])
    each = len(one) + parquet_footers.OF_A_FILE
    for number in range(100):
        known.add((str(number), "v", None), one)
        assert known.get(("0", "v", None)) is one
    assert len(known) == 1000 // each
    assert known.get(("99", "v", None)) is one and known.get(("50", "v", None)) is None
    known.add(("99", "v", None), FileRanges([[(0, 10)]] * 2000))
    assert len(known) == 0, "nothing is held that is larger than all may be"


on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)


# --- what a node has ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parquet_footers, "_known", KnownFiles())
    yield
    storage.keep_on_node(None)


@pytest.fixture
def begin(bucket: tuple[str, FlakyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Write files into a bucket; the function is what another process of the job begins with, beside another job."""
    url, _ = bucket
    for number in range(FILES):
        storage.write_file(f"{url}/set/{number}", written(number, 64, 3, 40_000))  # groups of two and a half blocks

    def begin() -> None:
        storage.keep_on_node(None)
        monkeypatch.setattr(parquet_footers, "_known", KnownFiles())
        cache = Cache(tmp_path, source_bytes=64 * MIB)
        with EntryStore(cache.source_folder, max_bytes=64 * MIB) as store:
            Company(store, "another job").reads(storage.dataset_of(f"{url}/set/0"))
        storage.keep_source_bytes(cache, "this job")

    begin()
    return begin


def rows_read(source: Parquet, split: Split) -> int:
    return sum(len(next(iter(columns.values()))) for columns in source.read_columns(split))


@on_s3
def test_of_the_splits_of_parquet_files_those_that_a_node_has_are_told(
    bucket: tuple[str, FlakyProxy], begin: Callable[[], None]
) -> None:
    url, proxy = bucket
    source = Parquet(f"{url}/set/*", split_bytes=1)
    storage.keep_on_node(None)  # the trainer lists
    splits = list(source.splits())
    assert len(splits) == 3 * FILES
    begin()

    def told(source: Any = source) -> tuple[int, ...] | None:
        requests = len(proxy.requests)
        found = on_node(source, splits)
        assert len(proxy.requests) == requests, "nothing is fetched to tell"
        return found

    assert told() == ()
    assert rows_read(source, splits[1]) == 64
    assert told() == (1,)
    assert rows_read(source, splits[3]) == 64 and rows_read(source, splits[5]) == 64
    assert told() == (1, 3, 5)
    begin()
    assert told() == (1, 3, 5), "the ends of files on the disk tell it"
    few = Parquet(f"{url}/set/*", columns=["number"], split_bytes=1)
    assert told(few) == (1, 2, 3, 4, 5), "it lies in blocks that came with others" and told() == (1, 3, 5)
    other = Parquet(f"{url}/set/*", columns=["none such"], split_bytes=1)
    assert told(other) == ()


@on_s3
def test_an_answer_looks_at_a_bounded_number_of_files(
    bucket: tuple[str, FlakyProxy], begin: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Parquet(f"{bucket[0]}/set/*")
    splits = list(source.splits())
    assert [rows_read(source, split) for split in splits] == [3 * 64] * FILES
    begin()
    monkeypatch.setattr(parquet_footers, "MOST_LOOKED", 1)
    assert [len(on_node(source, splits) or ()) for _ in range(FILES)] == [1, 2, 3], "and the next one at others"
    begin()
    monkeypatch.setattr(parquet_footers, "LOOKED_BYTES", 100)
    assert on_node(source, splits) == (), "their footers are longer"
    assert [rows_read(source, split) for split in splits] == [3 * 64] * FILES
    assert on_node(source, splits) == (0, 1, 2), "but those that were read are known"
    monkeypatch.setattr(parquet_footers, "_known", KnownFiles(0))
    assert on_node(source, splits) == ()


@on_s3
def test_what_is_no_parquet_file_is_not_known(bucket: tuple[str, FlakyProxy], begin: Callable[[], None]) -> None:
    url, _ = bucket
    bodies = (b"", b"PAR1", random.Random(1).randbytes(9999), b"x" * 99 + b"\x32\0\0\0PAR1")
    paths = [f"{url}/set/not-{number}" for number in range(len(bodies))]
    for path, body in zip(paths, bodies, strict=True):
        storage.write_file(path, body)
    infos = [storage.file_info(path) for path in paths]
    for info in infos:
        storage.read_range(info.path, 0, version=info.version)
    splits = [Split(n, one.path, 0, 1, payload=(0,), version=one.version) for n, one in enumerate(infos)]
    assert on_node(Parquet(f"{url}/set/*"), splits) == ()
