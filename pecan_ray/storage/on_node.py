"""What a process of a job reads from its node's disk instead of from buckets, as the job's settings say."""

from __future__ import annotations

from pecan_ray.options import Cache
from pecan_ray.storage.access import keep_on_node
from pecan_ray.storage.block_cache import BlockCache
from pecan_ray.storage.digesting import read_digest
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
