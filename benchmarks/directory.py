"""What finding one of ten million blocks costs: the index of a node's folder, and the ring that tells the node.

    python benchmarks/directory.py [--blocks 10000000] [--nodes 1000] [--looks 20000] [--folder FOLDER]

The index is a folder's own, with a line for each block and none of their bytes (10 TB of them, at 1 MiB a block); some
1.5 GB of disk.  Looks are at random blocks that are there, and at as many that are not; times are medians and 99th
percentiles of single looks.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pecan_ray.cache.rendezvous_hash import RendezvousHash
from pecan_ray.caching.store import EntryStore
from pecan_ray.caching.store_index import opened_index

BLOCK = 1 << 20
OF_SEGMENT = 256
KIND = "s3://bucket/data"


def key_of(number: int) -> str:
    """Return the name of a block."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=20).hexdigest()


def rows(blocks: int) -> Iterator[tuple[str, str, str, int, int, int, float, int]]:
    """Yield the lines of the index."""
    for number in range(blocks):
        segment, place = divmod(number, OF_SEGMENT)
        yield key_of(number), KIND, f"{segment:016x}.segment", place * BLOCK, BLOCK, BLOCK, 0.0, number


def fill(folder: Path, blocks: int) -> float:
    """Write the index of a folder; return the seconds that it took."""
    begin = time.perf_counter()
    index = opened_index(folder / "index.sqlite")
    index.execute("PRAGMA cache_size = -2000000")  # KiB: names are random, and so are the pages that are written
    with index:
        index.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows(blocks))
        names = ((f"{number:016x}.segment", OF_SEGMENT * BLOCK, number) for number in range(-(-blocks // OF_SEGMENT)))
        index.executemany("INSERT INTO segments VALUES (?, ?, ?)", names)
    index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.close()
    return time.perf_counter() - begin


def looks(told: str, keys: list[str], look: Callable[[str], object], expected: bool) -> None:
    """Time looks one by one and print."""
    times = []
    for key in keys:
        begin = time.perf_counter()
        found = look(key)
        times.append(time.perf_counter() - begin)
        if bool(found) is not expected:
            raise SystemExit(f"{told}: {key} is {'not ' if expected else ''}there")
    times.sort()
    middle, high = times[len(times) // 2], times[int(0.99 * len(times))]
    print(f"{told}: {1e6 * middle:.1f} us, 99 %: {1e6 * high:.1f} us", flush=True)


def measure(folder: Path, asked: argparse.Namespace) -> None:
    """Fill, look, and print."""
    (folder / "segments").mkdir(exist_ok=True)
    seconds = fill(folder, asked.blocks)
    size = (folder / "index.sqlite").stat().st_size
    print(f"{asked.blocks:,} blocks: {size / 1e9:.2f} GB of index, written in {seconds:.0f} s", flush=True)
    draw = random.Random(0)
    there = [key_of(draw.randrange(asked.blocks)) for _ in range(asked.looks)]
    absent = [key_of(asked.blocks + number) for number in range(asked.looks)]
    with EntryStore(folder, max_bytes=asked.blocks * BLOCK, policy="resident", by_kind=True) as store:
        for turn in ("the first time", "again"):
            looks(f"a block that is there, {turn}", there, store.__contains__, True)
        looks("a block that is not there", absent, store.__contains__, False)
        looks("the size of its object", there, store.about, True)
    owners = RendezvousHash(str(number) for number in range(asked.nodes))
    looks(f"its node of {asked.nodes:,}", there, owners.owner, True)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--looks", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="of the disk that is measured; a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        measure(Path(folder), asked)


if __name__ == "__main__":
    main()
