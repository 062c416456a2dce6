"""Images in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pecan_ray.errors import PlanError
from pecan_ray.sources.class_folders import ClassFolders


@dataclass(frozen=True, init=False)
class ImageFolder(ClassFolders):
    """The images of ``root/<class>/**``: columns image (encoded bytes), label (int) and path (str).

    The label is the place of the class in `classes`, or among the sorted names of the folders in `root`.  Other files
    than images (by their extension), and names that begin with ``.`` or ``_``, are left out.  Raises
    SourceNotFoundError if there is no class folder, or no image in any.  Where bad elements are skipped, an image that
    cannot be read is left out alone.
    """

    decode: bool
    """The pipeline begins with ``map(images.Decode(), on="image")``: images are uint8 RGB [height, width, 3], and
    AutoOrder still lets the decoder do less where crops and resizing follow."""
    endings: ClassVar = (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
        *(".avif", ".heic", ".heif", ".jp2"),
    )
    item_name: ClassVar = "image"
    column: ClassVar = "image"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None = None,
        split_files: int = 64,
        decode: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe a folder of images.

        Args:
            root: holds one folder per class.
            classes: names of the folders to read, in the order of their labels; None: all, by name.
            split_files: images in a split.
            decode: the pipeline begins with ``map(images.Decode(), on="image")``.
            storage_options: of the storage, in fsspec's words; secrets as `Env`.
        """
        super().__init__(root, classes=classes, split_files=split_files, storage_options=storage_options)
        if not isinstance(decode, bool):
            raise PlanError(f"ImageFolder(decode=...) must be True or False, but got {decode!r}.")
        object.__setattr__(self, "decode", decode)
