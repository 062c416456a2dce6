"""Images in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pecan_ray.errors import PlanError, SourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.class_folders import (
    ClassFolders,
    ListedFiles,
    checked_classes,
    grouped,
    listed_files,
    read_group,
    read_group_past_errors,
)
from pecan_ray.sources.files import check_positive, identity_of, single_path
from pecan_ray.storage.options import storage_options as checked_options

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".avif", ".heic", ".heif", ".jp2"),
)


@dataclass(frozen=True, init=False)
class ImageFolder:
    """The images of ``root/<class>/**``: columns image (encoded bytes), label (int) and path (str).

    The label is the place of the class in `classes`, or among the sorted names of the folders in `root`.  Other files
    than images (by their extension), and names that begin with ``.`` or ``_``, are left out.  Raises
    SourceNotFoundError if there is no class folder, or no image in any.  Where bad elements are skipped, an image that
    cannot be read is left out alone.
    """

    root: str
    split_files: int
    """Images in a split."""
    decode: bool
    """The pipeline begins with ``map(images.Decode(), on="image")``: images are uint8 RGB [height, width, 3], and
    AutoOrder still lets the decoder do less where crops and resizing follow."""
    given_classes: tuple[str, ...] | None
    storage_options: Mapping[str, Any] | None = field(hash=False)
    """Of the storage, in fsspec's words; secrets as `Env`."""
    counts_splits: ClassVar[bool] = True

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
        check_positive(split_files=split_files)
        if not isinstance(decode, bool):
            raise PlanError(f"ImageFolder(decode=...) must be True or False, but got {decode!r}.")
        path = single_path("ImageFolder", root)
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "split_files", split_files)
        object.__setattr__(self, "decode", decode)
        object.__setattr__(self, "given_classes", checked_classes("ImageFolder", classes))
        object.__setattr__(self, "storage_options", checked_options(storage_options, (path,)))

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels (listed anew at each use)."""
        return self._folders.classes()

    def splits(self) -> Iterator[Split]:
        """Yield groups of images, listing one class after the other."""
        return grouped(self._folders.files(), self.split_files)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the images of a group, undecoded."""
        return read_group(split, start, _element)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield images as `read` does, and errors in the place of those that cannot be read."""
        return read_group_past_errors(split, start, _element)

    def num_elements(self) -> int:
        """Return the number of images, by listing them."""
        return sum(1 for _ in self._folders.files())

    def identity(self) -> str:
        """Return a digest of the classes and of every image's path, size and version."""
        files = (file for file, _ in self._folders.files())
        return identity_of("ImageFolder", (self.classes, self.split_files), files)

    def by_index(self) -> ListedFiles:
        """Return the images as they are listed now, of which any can be read by its number."""
        options = (self.classes, self.split_files)
        return listed_files("ImageFolder", options, self._folders.files(), _element, self.split_files)

    @property
    def _folders(self) -> ClassFolders:
        return ClassFolders(self.root, EXTENSIONS, "ImageFolder", "image", self.given_classes)


def _element(path: str, label: int, image: bytes) -> Element:
    return {"image": image, "label": label, "path": path}
