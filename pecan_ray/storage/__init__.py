"""Reading and writing files on local disks, S3 and Google Cloud Storage through one set of functions."""

from __future__ import annotations

from pecan_ray.storage.access import (
    bound_datasets,
    bytes_from_node,
    delete_file,
    drop_prefetch,
    hedge_reads,
    keep_on_node,
    open_random,
    open_stream,
    prefetch,
    read_all,
    read_each,
    read_file_range,
    read_many,
    read_range,
    reads_hedged,
    reset_clients,
    write_file,
)
from pecan_ray.storage.backend import FileInfo
from pecan_ray.storage.block_cache import BlockCache
from pecan_ray.storage.clients import is_remote
from pecan_ray.storage.co_readers import dataset_of
from pecan_ray.storage.dataset_digest import changed, make_digest, read_digest, write_digest
from pecan_ray.storage.digest import ObjectDigest
from pecan_ray.storage.heads import HEAD_BYTES, Head
from pecan_ray.storage.hedged_reads import HedgeCount
from pecan_ray.storage.listing import file_info, list_files, list_folder, subfolders
from pecan_ray.storage.local import file_on_disk
from pecan_ray.storage.on_node import (
    holds,
    is_shared,
    keep_source_bytes,
    look_elsewhere,
)
from pecan_ray.storage.retry import set_patience
from pecan_ray.storage.spread import CacheNode, SentBlock, SpreadBlocks
from pecan_ray.storage.throttle import limit_remote_io, remote_bytes

__all__ = [
    "HEAD_BYTES",
    "BlockCache",
    "CacheNode",
    "FileInfo",
    "Head",
    "HedgeCount",
    "ObjectDigest",
    "SentBlock",
    "SpreadBlocks",
    "bound_datasets",
    "bytes_from_node",
    "changed",
    "dataset_of",
    "delete_file",
    "drop_prefetch",
    "file_info",
    "file_on_disk",
    "hedge_reads",
    "holds",
    "is_remote",
    "is_shared",
    "keep_on_node",
    "keep_source_bytes",
    "limit_remote_io",
    "list_files",
    "list_folder",
    "look_elsewhere",
    "make_digest",
    "open_random",
    "open_stream",
    "prefetch",
    "read_all",
    "read_digest",
    "read_each",
    "read_file_range",
    "read_many",
    "read_range",
    "reads_hedged",
    "remote_bytes",
    "reset_clients",
    "set_patience",
    "subfolders",
    "write_digest",
    "write_file",
]
