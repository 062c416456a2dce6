"""Which share of what is read a store that is too small for it has, by its policy.

    python benchmarks/cache_policies.py [--entries 4000] [--readers 1]

Epochs over entries of 1,000 bytes in random orders, through real stores on a disk; the first two epochs do not count.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from pecan_ray.cache import EvictionPolicy
from pecan_ray.caching.segments import ALIGNMENT
from pecan_ray.caching.store import EntryStore

ENTRY = bytes(1000)
EPOCHS, SKIPPED = 5, 2
POLICIES: tuple[EvictionPolicy, ...] = ("lru", "benefit", "resident")


def hit_share(policy: EvictionPolicy, room: float, entries: int, readers: int) -> float:
    """Return the share of reads that find something where so large a part of the entries has room."""
    max_bytes = int(room * entries * -(-len(ENTRY) // ALIGNMENT) * ALIGNMENT)
    hits = 0
    with tempfile.TemporaryDirectory() as folder:
        stores = [EntryStore(Path(folder), max_bytes=max_bytes, policy=policy) for _ in range(readers)]
        for epoch in range(EPOCHS):
            for place, number in enumerate(random.Random(epoch).sample(range(entries), entries)):
                store = stores[place % readers]
                if store.get(str(number)) is None:
                    store.put(str(number), "data", [ENTRY], elements=1, seconds=0.0)
                elif epoch >= SKIPPED:
                    hits += 1
        for store in stores:
            store.close()
    return hits / (entries * (EPOCHS - SKIPPED))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=4000)
    parser.add_argument("--readers", type=int, default=1, help="stores of one folder that take turns, as processes do")
    asked = parser.parse_args()
    for room in (0.2, 0.5, 0.8):
        told = (f"{policy} {hit_share(policy, room, asked.entries, asked.readers):.1%}" for policy in POLICIES)
        print(f"room for {room:.0%}: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
