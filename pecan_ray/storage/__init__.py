"""Reading bytes from local disks, S3 and Google Cloud Storage through one set of functions."""

from __future__ import annotations

from pecan_ray.storage.access import (
    fetch_ahead,
    file_info,
    forget_ahead,
    list_files,
    list_folder,
    open_random,
    open_stream,
    read_all,
    read_many,
    read_range,
    reset_clients,
    subfolders,
)
from pecan_ray.storage.backend import FileInfo
from pecan_ray.storage.heads import HEAD_BYTES, Head
from pecan_ray.storage.retry import set_patience

__all__ = [
    "HEAD_BYTES",
    "FileInfo",
    "Head",
    "fetch_ahead",
    "file_info",
    "forget_ahead",
    "list_files",
    "list_folder",
    "open_random",
    "open_stream",
    "read_all",
    "read_many",
    "read_range",
    "reset_clients",
    "set_patience",
    "subfolders",
]
