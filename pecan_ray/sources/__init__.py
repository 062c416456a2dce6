"""Where elements come from: files on disks and in buckets, memory, and datasets of Ray."""

from __future__ import annotations

from pecan_ray.sources.csv_table import Csv
from pecan_ray.sources.image_folder import ImageFolder
from pecan_ray.sources.memory import Arrays, Items
from pecan_ray.sources.parquet import Parquet
from pecan_ray.sources.ray_dataset import RayDataset
from pecan_ray.sources.text import JsonLines, TextLines
from pecan_ray.sources.tfrecord import TFRecords
from pecan_ray.sources.webdataset import WebDataset

__all__ = [
    "Arrays",
    "Csv",
    "ImageFolder",
    "Items",
    "JsonLines",
    "Parquet",
    "RayDataset",
    "TFRecords",
    "TextLines",
    "WebDataset",
]
