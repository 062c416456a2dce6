"""What a process of a job reads from its node's disk instead of from buckets, as the job's settings say."""

from __future__ import annotations

from collections.abc import Iterable

from pecan_ray.cache_options import Cache
from pecan_ray.storage.access import blocks_here, keep_on_node
from pecan_ray.storage.block_cache import BlockCache
from pecan_ray.storage.dataset_digest import read_digest
from pecan_ray.storage.ranges import RangeRequest
from pecan_ray.storage.spread import SpreadBlocks


def keep_source_bytes(cache: Cache, job: str = "", others: SpreadBlocks | None = None) -> None:
    """Let reads of buckets by this process be kept and verified; raises CorruptSourceError for a damaged digest.

    `job`: the name of the job, if it reads first what is on its node; `others`: the nodes among which blocks are
    spread.
    """
    if not cache.source_bytes and not cache.digests:
        keep_on_node(None)
        return
    folder = cache.source_folder if cache.source_bytes else None
    digests = [read_digest(str(path)) for path in cache.digests]
    keep_on_node(BlockCache(folder, cache.source_bytes, digests, job=job if cache.cached_first else "", others=others))


def is_shared() -> bool:
    """Tell whether other jobs on this node read the same data, and take first what is here."""
    blocks = blocks_here()
    return blocks is not None and blocks.is_shared


def look_elsewhere(ranges: Iterable[RangeRequest]) -> None:
    """Look which ranges of objects other nodes have, where blocks are spread over nodes: `holds` counts them too."""
    if (blocks := blocks_here()) is not None:
        blocks.look((one.path, one.version, one.start, one.stop) for one in ranges)


def holds(ranges: Iterable[RangeRequest]) -> bool:
    """Tell whether this node's disk, or what was looked for elsewhere, has all of some ranges of objects."""
    blocks = blocks_here()
    return blocks is not None and all(blocks.holds(one.path, one.version, one.start, one.stop) for one in ranges)
