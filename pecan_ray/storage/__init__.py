"""Reading bytes from local disks, S3 and Google Cloud Storage through one set of functions."""

from __future__ import annotations

from pecan_ray.storage.access import (
    file_info,
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

__all__ = [
    "FileInfo",
    "file_info",
    "list_files",
    "list_folder",
    "open_random",
    "open_stream",
    "read_all",
    "read_many",
    "read_range",
    "reset_clients",
    "subfolders",
]
