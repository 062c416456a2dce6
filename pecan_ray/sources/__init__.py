"""Where elements come from: files on disks and in buckets, memory, and datasets of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.sources.audio_folder import AudioFolder
    from pecan_ray.sources.blend import Blend
    from pecan_ray.sources.by_index import ByIndex
    from pecan_ray.sources.csv_table import Csv
    from pecan_ray.sources.hugging_face import HuggingFace
    from pecan_ray.sources.image_folder import ImageFolder
    from pecan_ray.sources.lance_table import Lance
    from pecan_ray.sources.lit_data import LitData
    from pecan_ray.sources.memory import Arrays, Items
    from pecan_ray.sources.mosaic import Mds
    from pecan_ray.sources.parquet import Parquet
    from pecan_ray.sources.ray_dataset import RayDataset
    from pecan_ray.sources.resampled import Resampled
    from pecan_ray.sources.text import JsonLines, TextLines
    from pecan_ray.sources.tfrecord import TFRecords
    from pecan_ray.sources.token_files import TokenFiles
    from pecan_ray.sources.torch_iterable import TorchIterable
    from pecan_ray.sources.webdataset import WebDataset
    from pecan_ray.sources.whole_files import Files
    from pecan_ray.storage.options import Env

__all__ = [
    "Arrays",
    "AudioFolder",
    "Blend",
    "ByIndex",
    "Csv",
    "Env",
    "Files",
    "HuggingFace",
    "ImageFolder",
    "Items",
    "JsonLines",
    "Lance",
    "LitData",
    "Mds",
    "Parquet",
    "RayDataset",
    "Resampled",
    "TFRecords",
    "TextLines",
    "TokenFiles",
    "TorchIterable",
    "WebDataset",
]

__getattr__ = lazy_names(
    __name__,
    {
        "TorchIterable": "pecan_ray.sources.torch_iterable",
        "Mds": "pecan_ray.sources.mosaic",
        "LitData": "pecan_ray.sources.lit_data",
        "Files": "pecan_ray.sources.whole_files",
        "AudioFolder": "pecan_ray.sources.audio_folder",
        "Blend": "pecan_ray.sources.blend",
        "Arrays": "pecan_ray.sources.memory",
        "ByIndex": "pecan_ray.sources.by_index",
        "Csv": "pecan_ray.sources.csv_table",
        "Env": "pecan_ray.storage.options",
        "HuggingFace": "pecan_ray.sources.hugging_face",
        "ImageFolder": "pecan_ray.sources.image_folder",
        "Items": "pecan_ray.sources.memory",
        "JsonLines": "pecan_ray.sources.text",
        "Lance": "pecan_ray.sources.lance_table",
        "Parquet": "pecan_ray.sources.parquet",
        "RayDataset": "pecan_ray.sources.ray_dataset",
        "Resampled": "pecan_ray.sources.resampled",
        "TFRecords": "pecan_ray.sources.tfrecord",
        "TextLines": "pecan_ray.sources.text",
        "TokenFiles": "pecan_ray.sources.token_files",
        "WebDataset": "pecan_ray.sources.webdataset",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
