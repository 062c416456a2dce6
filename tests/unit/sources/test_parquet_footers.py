"""What runs of row groups of Parquet files need, told by footers, and which of it a node has: on a real S3 server."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray import storage
from pecan_ray.cache_options import MIB, Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.plan.splits import Split
from pecan_ray.sources import Files, Parquet, parquet_footers
from pecan_ray.sources.files import on_node
from pecan_ray.sources.parquet_footers import NeededRanges
from pecan_ray.storage.co_readers import ReaderRegistry
from tests.flaky_http import FlakyProxy

BLOCK = 64 << 10
"""Of tests that need many; Arrow reads on over holes of 8 KiB."""
ROWS, GROUPS, FILES = 256, 6, 3


def blocks_of(ranges: list[tuple[int, int]], size: int = BLOCK) -> list[int]:
    return [block for start, stop in ranges for block in range(start // size, -(-stop // size))]


def written(seed: int = 0, rows: int = ROWS, groups: int = GROUPS, row_bytes: int = 1200) -> bytes:
    """Return a Parquet file of row groups whose columns cannot be packed; one is nested, one has a dictionary."""
    draw, count, file = np.random.default_rng(seed), rows * groups, io.BytesIO()
    words = np.array([draw.bytes(2000).hex() for _ in range(40)])
    columns = {
        "number": draw.integers(0, 1 << 62, count),
        "word": pa.array(words[draw.integers(0, len(words), count)]).dictionary_encode(),
        "inner": pa.array([{"a": value, "b": [value, value]} for value in draw.random(count)]),
        "data": pa.array([draw.bytes(row_bytes) for _ in range(count)]),
    }
    pq.write_table(pa.table(columns), file, row_group_size=rows, compression="none")
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


@pytest.mark.parametrize("columns", [None, ["number"], ["word"], ["inner"], ["inner.b", "number"], ["data", "word"]])
@pytest.mark.parametrize("groups", [(0,), (2, 3), (GROUPS - 1,)])
def test_what_is_told_of_a_run_is_what_reading_it_reads(
    columns: list[str] | None, groups: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_footers, "BLOCK_BYTES", BLOCK)
    data = written()
    footer = pq.read_metadata(io.BytesIO(data))
    told = list(NeededRanges(footer, len(data), columns).of(groups))
    file = NotedReads(data)
    reader = pq.ParquetFile(file, metadata=footer, pre_buffer=True)
    read = reader.iter_batches(100, row_groups=groups, columns=columns)
    assert sum(batch.num_rows for batch in read) == ROWS * len(groups)
    assert blocks_of(told) == sorted({*blocks_of(file.ranges)})


def test_a_footer_that_is_wrong_tells_nothing() -> None:
    footer = pq.read_metadata(io.BytesIO(written()))
    assert NeededRanges(footer, 10, None).of((0,)) == (), "its columns lie behind the end of the file"


on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)


# --- what a node has ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    storage.keep_on_node(None)


@pytest.fixture
def begin(bucket: tuple[str, FlakyProxy], tmp_path: Path) -> Callable[[], None]:
    """Write files into a bucket; the function is what another process of the job begins with, beside another job."""
    url, _ = bucket
    for number in range(FILES):
        storage.write_file(f"{url}/set/{number}", written(number, 64, 3, 40_000))  # groups of two and a half blocks

    def begin() -> None:
        storage.keep_on_node(None)
        cache = Cache(tmp_path, source_bytes=64 * MIB)
        with EntryStore(cache.source_folder, max_bytes=64 * MIB) as store:
            ReaderRegistry(store, "another job").reads(storage.dataset_of(f"{url}/set/0"))
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

    def told() -> tuple[int, ...] | None:
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
    assert told() == (1, 3, 5), "another process of the job is told with the splits"
    splits = list(Parquet(f"{url}/set/*", columns=["number"], split_bytes=1).splits())
    assert told() == (1, 2, 3, 4, 5), "it lies in blocks that came with others"
    whole = Files(f"{url}/set/*", split_files=1)
    first = next(whole.splits())
    assert on_node(whole, [first]) == ()
    assert len(list(whole.read(first))) == 1 and on_node(whole, [first]) == (0,)
